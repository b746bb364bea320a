"""A fetch that is dropped goes on in SGLang's threads: no flush before all ranks have ended it."""

from __future__ import annotations

import itertools
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.cache_controller import PrefetchAck, PrefetchOperation
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore import restore_hooks, tail_fetch
from tokenflow_sgl.engine.restore.fetch_ends import drained
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restoring_scheduler import StockRestoringScheduler
from tokenflow_sgl.engine.telemetry.prometheus import Recorder

QUEUES = ("prefetch_hit_queue", "ack_prefetch_queue", "ack_backup_queue", "host_mem_release_queue")


class Tree:
    """SGLang's, with a fetch in its threads that it has forgotten already, as one is dropped."""

    host_memory_mode = "cache"
    page_size = 16

    def __init__(self) -> None:
        self.cache_controller = SimpleNamespace(**{name: Queue() for name in QUEUES})
        self.ongoing_prefetch: dict[Any, Any] = {}
        self.operation = PrefetchOperation("r", [0] * 64)
        self.operation.handle, self.operation.ack_releases_incomplete_host_indices = "r", False
        self.operation.hash_value = ["0", "1", "2", "3"]
        copies: Any = None
        tail_fetch.mark(self.operation, self.page_size, LatestRate(), 0.0, copies)
        # As SGLang, which gives it to its threads then.
        tail_fetch._allocate(
            lambda controller, operation, tokens: ([0] * tokens, tokens),
            self.cache_controller,
            self.operation,
            64,
        )

    def told(self, **what: Any) -> None:
        """All ranks have agreed on an acknowledgement."""
        ack = PrefetchAck(rid="r", operation=self.operation, **what)
        self.cache_controller.ack_prefetch_queue.put(ack)

    def drain(self, acks: int) -> None:
        drained(
            UnifiedRadixCache._drain_storage_control_queues_impl,
            self,
            n_storage_hit=0,
            n_ack_prefetch=acks,
            n_backup=0,
            n_release=0,
            extra_release_counts=None,
            log_metrics=False,
        )


@pytest.fixture
def scheduler(monkeypatch) -> Any:
    """Of which SGLang says that it is idle."""
    made = object.__new__(StockRestoringScheduler)
    made.tree_cache = tree = Tree()
    record = RestorationRecord(Recorder(), None)
    made.tf_restorations = Restorations(
        tree, 64, make_planner("auto"), record, lambda request: None
    )
    monkeypatch.setattr(Scheduler, "is_fully_idle", lambda self, *which: True)
    return made


def test_a_dropped_fetch_is_work_until_its_end_is_told(scheduler) -> None:
    tree = scheduler.tree_cache
    assert not scheduler.is_fully_idle()
    assert not scheduler.is_fully_idle(ignore_waiting=True), "as while the engine is paused"
    assert scheduler.is_fully_idle(for_health_check=True), "there is no stream"
    tree.told(completed_tokens=16)
    tree.told(completed_tokens=16)
    tree.told(completed_req=True)
    tree.drain(2)  # on another rank the last one is not there yet
    assert not scheduler.is_fully_idle()
    tree.drain(1)
    assert scheduler.is_fully_idle()


def test_fetches_end_while_the_engine_is_paused(scheduler, monkeypatch) -> None:
    calls = itertools.count()
    monkeypatch.setattr(Scheduler, "_record_scheduler_state_for_paused_engine", lambda self: None)
    scheduler.enable_hierarchical_cache = True
    scheduler.tree_cache.check_hicache_events = lambda: next(calls)
    scheduler._record_scheduler_state_for_paused_engine()
    assert next(calls) == 1


def test_memory_is_released_when_they_have_ended(scheduler) -> None:
    """SGLang ends the server that is asked to while it is not idle."""
    tree = scheduler.tree_cache
    restore_hooks.attach_restorations(tree, scheduler.tf_restorations)
    tree.told(completed_tokens=16)
    tree.told(completed_req=True)
    tree.check_hicache_events = lambda: tree.drain(1)
    updater = SimpleNamespace(scheduler=scheduler)
    assert restore_hooks._released(lambda *_: scheduler.is_fully_idle(), updater, None)
