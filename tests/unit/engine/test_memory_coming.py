"""A decode step that does not fit while copies hold memory is skipped, and nothing is retracted."""

from __future__ import annotations

from typing import Any

import pytest
from fakes.engine import BareScheduler, add
from fakes.sglang import Batch, Request, Tree
from sglang.srt.managers.scheduler import Scheduler

from tokenflow_sgl.contract import Phase


class LockedTree(Tree):
    """A tree with HiCache of which running streams lock 30 tokens."""

    locked = 30

    def protected_size(self) -> int:
        return self.locked


@pytest.fixture
def scheduler(monkeypatch) -> BareScheduler:
    """A scheduler whose batches SGLang would decode, or retract from."""
    monkeypatch.setattr(Scheduler, "update_running_batch", lambda self, batch: "SGLang's")
    return BareScheduler(enable_hierarchical_cache=True, tree_cache=LockedTree())


def stream(locked: int) -> Request:
    made = Request()
    made.kv.cache_protected_len = locked
    return made


def batch(*, fits: bool, locked: int = 30) -> Batch:
    return Batch(stream(locked), fits=fits)


def test_without_copies_sglang_decides(scheduler) -> None:
    assert scheduler.update_running_batch(batch(fits=False)) == "SGLang's"


def drain(scheduler: Any) -> None:
    scheduler.tokenflow.body.pauser.draining.append(stream(0))


def lock(scheduler: Any) -> None:
    """A session that waits for its next turn, say."""
    scheduler.tree_cache.locked = 31


def copy(scheduler: Any) -> None:
    lock(scheduler)
    scheduler.tree_cache.ongoing_write_through[1] = "copy"


def load(scheduler: Any) -> None:
    lock(scheduler)
    scheduler.tree_cache.ongoing_load_back[1] = "copy"


@pytest.mark.parametrize("hold", [drain, copy, load])
def test_a_step_waits_for_memory_that_is_on_its_way(scheduler, hold) -> None:
    hold(scheduler)
    assert scheduler.update_running_batch(batch(fits=False)) is None
    assert scheduler.update_running_batch(batch(fits=True)) == "SGLang's"
    assert scheduler.update_running_batch(Batch(fits=False)) == "SGLang's", "it is empty"


def test_locks_without_a_copy_are_not_waited_for(scheduler) -> None:
    lock(scheduler)
    assert scheduler.update_running_batch(batch(fits=False)) == "SGLang's"


def test_copies_of_what_the_batch_itself_locks_free_nothing(scheduler) -> None:
    copy(scheduler)
    assert scheduler.update_running_batch(batch(fits=False, locked=31)) == "SGLang's"
    scheduler.chunked_req = stream(1)
    assert scheduler.update_running_batch(batch(fits=False, locked=30)) == "SGLang's"


def test_without_hicache_only_what_drains_is_waited_for() -> None:
    body = BareScheduler().tokenflow.body
    short = batch(fits=False)
    assert not body.skips_decode(short, 3.0), "a tree without HiCache is not asked"
    body.pauser.draining.append(stream(0))
    assert body.skips_decode(short, 3.0)


class Answers(Batch):
    """A batch that finds memory when it asks for the second time."""

    asked = 0

    def check_decode_mem(self) -> bool:
        self.asked += 1
        return self.asked > 1


def test_streams_that_are_loaded_in_part_give_way_first(scheduler) -> None:
    core = scheduler.tokenflow
    slot = add(core.book, Request("half"))
    phases = core.table.phases
    phases.move(slot, Phase.PAUSED, 1.0)
    phases.load(slot, 10, 20, 2.0)
    assert scheduler.update_running_batch(Answers(stream(30))) == "SGLang's"
    assert phases.is_in(slot, Phase.PAUSED)
    assert not phases.parts
