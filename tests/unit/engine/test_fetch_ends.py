"""A fetch that is dropped goes on in SGLang's threads: no flush before all ranks have ended it."""

from __future__ import annotations

from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from restoring_host import Host, Scheduler, extension_beside, restorations_with
from sglang.srt.managers.cache_controller import PrefetchAck, PrefetchOperation
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore import restore_hooks, tail_fetch
from tokenflow_sgl.engine.restore.fetch_ends import drained
from tokenflow_sgl.engine.restore.restore_extension import RestoreExtension

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
def tree() -> Tree:
    return Tree()


@pytest.fixture
def extension(tree) -> RestoreExtension:
    return extension_beside(Host(Scheduler(tree)), restorations_with(tree))


def test_a_dropped_fetch_is_work_until_its_end_is_told(tree, extension) -> None:
    assert not extension.idle
    tree.told(completed_tokens=16)
    tree.told(completed_tokens=16)
    tree.told(completed_req=True)
    tree.drain(2)  # on another rank the last one is not there yet
    assert not extension.idle
    tree.drain(1)
    assert extension.idle


def test_memory_is_released_when_they_have_ended(tree, extension) -> None:
    """SGLang ends the server that is asked to while it is not idle."""
    restore_hooks.attach_restorations(tree, restorations_with(tree))
    tree.told(completed_tokens=16)
    tree.told(completed_req=True)
    tree.check_hicache_events = lambda: tree.drain(1)
    updater = SimpleNamespace(scheduler=SimpleNamespace(tree_cache=tree))
    assert restore_hooks._released(lambda *_: extension.idle, updater, None)
