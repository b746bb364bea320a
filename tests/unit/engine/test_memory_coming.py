"""A decode step that does not fit while copies hold memory is skipped, and nothing is retracted."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.scheduler import Scheduler
from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.scheduler import TokenFlowScheduler

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle import Phases


@pytest.fixture
def scheduler(monkeypatch):
    """A scheduler whose batches SGLang would decode, or retract from."""
    monkeypatch.setattr(Scheduler, "update_running_batch", lambda self, batch: "SGLang's")
    made = object.__new__(TokenFlowScheduler)
    made.enable_hierarchical_cache = True
    made.chunked_req = None
    made.tf_pauser = SimpleNamespace(draining=[])
    made.tree_cache = SimpleNamespace(
        protected_size=lambda: 30,
        ongoing_write_through={},
        ongoing_load_back={},
        supports_swa=lambda: False,
        supports_mamba=lambda: False,
    )
    made.token_to_kv_pool_allocator, made.chunked_prefill_size = None, None
    made.tf_table = SimpleNamespace(phases=Phases(4), request=lambda slot: slot)
    made.tf_clock = SimpleNamespace(now=3.0)
    loader = SimpleNamespace(request=None, give_up=lambda request: None)
    made.tf_actuator = EngineActuator(made, made.tf_table, made.tf_pauser, None, loader)
    return made


class Stream:
    def __init__(self, locked: int) -> None:
        self.kv = SimpleNamespace(cache_protected_len=locked)


def batch(fits, locked=30, empty=False):
    return SimpleNamespace(
        reqs=[Stream(locked)], is_empty=lambda: empty, check_decode_mem=lambda: fits
    )


def test_without_copies_sglang_decides(scheduler) -> None:
    assert scheduler.update_running_batch(batch(fits=False)) == "SGLang's"


def drain(scheduler) -> None:
    scheduler.tf_pauser.draining.append("stream")


def lock(scheduler) -> None:
    """A session that waits for its next turn, say."""
    scheduler.tree_cache.protected_size = lambda: 31


def copy(scheduler) -> None:
    lock(scheduler)
    scheduler.tree_cache.ongoing_write_through[1] = "copy"


def load(scheduler) -> None:
    lock(scheduler)
    scheduler.tree_cache.ongoing_load_back[1] = "copy"


@pytest.mark.parametrize("hold", [drain, copy, load])
def test_a_step_waits_for_memory_that_is_on_its_way(scheduler, hold) -> None:
    hold(scheduler)
    assert scheduler.update_running_batch(batch(fits=False)) is None
    assert scheduler.update_running_batch(batch(fits=True)) == "SGLang's"
    assert scheduler.update_running_batch(batch(fits=False, empty=True)) == "SGLang's"


def test_locks_without_a_copy_are_not_waited_for(scheduler) -> None:
    lock(scheduler)
    assert scheduler.update_running_batch(batch(fits=False)) == "SGLang's"


def test_copies_of_what_the_batch_itself_locks_free_nothing(scheduler) -> None:
    copy(scheduler)
    assert scheduler.update_running_batch(batch(fits=False, locked=31)) == "SGLang's"
    scheduler.chunked_req = Stream(1)
    assert scheduler.update_running_batch(batch(fits=False, locked=30)) == "SGLang's"


def test_without_hicache_only_what_drains_is_waited_for(scheduler) -> None:
    scheduler.enable_hierarchical_cache = False
    scheduler.tree_cache = SimpleNamespace()
    assert scheduler.update_running_batch(batch(fits=False)) == "SGLang's"


def test_streams_that_are_loaded_in_part_give_way_first(scheduler):
    phases = scheduler.tf_table.phases
    phases.arrive(2, 1.0)
    phases.move(2, Phase.PAUSED, 1.0)
    phases.load(2, 10, 20, 2.0)
    answers = iter([False, True])
    tight = SimpleNamespace(
        reqs=[Stream(30)], is_empty=lambda: False, check_decode_mem=lambda: next(answers)
    )
    assert scheduler.update_running_batch(tight) == "SGLang's"
    assert phases.is_in(2, Phase.PAUSED)
    assert not phases.parts
