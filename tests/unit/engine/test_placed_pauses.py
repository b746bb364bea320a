"""Streams that are paused where KV is placed layer by layer: what they keep, and what they cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fakes.engine import book_of, placed_body
from fakes.sglang import Allocator, Batch, Request, Scheduler, Tree
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder

from tokenflow_sgl.engine.body.placed import LOOKED_STEPS
from tokenflow_sgl.engine.kv import preempt
from tokenflow_sgl.engine.layerwise import placed_pauser
from tokenflow_sgl.engine.layerwise.page_owners import PageOwners
from tokenflow_sgl.engine.layerwise.placed_adder import placed_adder_class
from tokenflow_sgl.engine.layerwise.placed_pauser import PlacedPauser
from tokenflow_sgl.engine.prefill_adder import AdmissionLimits

PAGE = 16


def request(rid: str, tokens: int = 20, row: int = 1) -> Any:
    """One that runs, with so many tokens."""
    return Request(rid, prompt=tokens - 1, made=1, row=row)


@pytest.fixture
def pauser(monkeypatch) -> PlacedPauser:
    def release(request: Any, _tree: Any, *, checkpoint: bool) -> None:
        request.kv.holds_kv, request.kept = False, checkpoint

    monkeypatch.setattr(placed_pauser, "release_kv_cache", release)
    monkeypatch.setattr(preempt, "release_kv_cache", release)
    return PlacedPauser(Tree(), lambda request: None, lambda request: None)


def test_a_pause_keeps_row_and_pages(pauser) -> None:
    paused = request("a")
    pauser.preempt([paused], Batch(), set())
    assert pauser.placed == [paused]
    assert paused.retraction_count == 0


def test_where_the_weights_change_no_kv_is_kept(pauser) -> None:
    paused, drains = request("a"), request("b")
    pauser.preempt([paused], Batch(), set())
    pauser.preempt([drains], Batch(), {drains})
    pauser.drop_draining()
    assert not pauser.placed
    assert not pauser.draining
    assert [*pauser.paused] == [paused, drains], "they wait to be computed again"
    assert not paused.kv.holds_kv
    assert not paused.kept
    assert not drains.kept
    assert paused.retraction_count == 1, "the engine threw it away"


def test_a_stream_that_lost_its_pages_is_not_placed(pauser) -> None:
    """The prefix tree has them until others need them."""
    first, second = request("a"), request("b")
    pauser.preempt([first, second], Batch(), set())
    pauser.give_up(second)
    assert second.kept
    assert pauser.placed == [first]
    assert [*pauser.paused] == [first, second]


class Placed:
    """A body whose SGLang has 60 pages; steps carry as many as its executor says."""

    def __init__(self, carried: int) -> None:
        self.owners, self.plans = PageOwners(40), SimpleNamespace(paused=frozenset())
        self.executor = SimpleNamespace(
            owners=self.owners, plans=self.plans, pages_at_once=carried, steps=0
        )
        pool = SimpleNamespace(executor=self.executor, page_size=PAGE)
        self.scheduler: Any = Scheduler(
            page_size=PAGE,
            max_total_num_tokens=60 * PAGE,
            token_to_kv_pool_allocator=Allocator(lambda: 0, pool),
        )
        self.book = book_of(self.scheduler)
        self.body = placed_body(self.scheduler, self.book)


def test_what_steps_carry_counts_as_the_devices() -> None:
    placed = Placed(carried=25)
    body, scheduler, owners = placed.body, placed.scheduler, placed.owners
    runs, drains = request("a", 20, row=1), request("b", 16, row=2)
    scheduler.result_queue = [(Batch(runs, drains), None)]
    body.pauser.draining.append(drains)
    body.begin(Batch(runs))
    assert body.total == 25 * PAGE, "what the leader says that steps carry"
    assert body.free == (25 - 2 - 1) * PAGE, "each stream once, and whole pages"
    assert body.free_share == 22 / 25
    assert body.left == body.free
    scheduler.chunked_req = half = request("c", 100, row=3)
    half.kv.kv_allocated_len = half.prefix_len = 32
    assert body.free == (25 - 2 - 1 - 2) * PAGE
    assert body.left == body.free - 68, "what is left of the prompt"
    owners.read(1, np.array([5, 6]), ())
    owners.read(2, np.array([5]), ())
    assert body.shared(drains) == PAGE
    assert body.free == (25 - 2 - 2) * PAGE, "what two of them read is counted once"
    placed.plans.paused = frozenset({1})
    drains.kv.holds_kv, drains.prefix_len = False, 16
    assert body.free == (25 - 2 - 2) * PAGE, "a result of what was thrown out is in flight"
    drains.kv.holds_kv = True
    assert body.shared(drains) == 0, "the other one is paused, and has no claim"


def test_the_leader_says_now_and_then_what_steps_carry() -> None:
    """Policy and ranks would see another memory in each pass."""
    placed = Placed(carried=25)
    host, executor = placed.body.host_tokens, placed.executor
    assert host() == placed.book.clock.host_total == 35 * PAGE
    executor.pages_at_once, executor.steps = 31, LOOKED_STEPS - 1
    assert host() == 35 * PAGE
    executor.steps += 1
    assert host() == 29 * PAGE
    executor.pages_at_once, executor.steps = 80, 2 * LOOKED_STEPS
    assert host() == 0, "there are no more pages than SGLang has"
    assert placed.body.total == 25 * PAGE, "until its clock tells all ranks"


class Adding:
    """An adder with so many tokens free on the device, on an engine whose pages are many."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        free: int,
        *,
        active: bool = True,
        running: int = 0,
        shared: int = 0,
    ) -> None:
        def add(adder: Any, request: Any) -> AddReqResult:
            adder.can_run_list.append(request)
            return AddReqResult.CONTINUE

        monkeypatch.setattr(PrefillAdder, "__init__", lambda adder, *args: None)
        monkeypatch.setattr(PrefillAdder, "add_one_req", add)
        limits = AdmissionLimits(active=active)
        self.headroom = limits.growth.headroom
        self.adder = placed_adder_class(limits, lambda: free, lambda req: shared)(*[1] * 8)
        self.adder.can_run_list, self.adder.is_hybrid_swa = [], False
        self.adder.running_batch = SimpleNamespace(reqs=[request("runs")] * running)

    def __call__(self, tokens: int) -> bool:
        return bool(self.adder.add_one_req(request("new", tokens)) is AddReqResult.CONTINUE)


def test_prompts_are_admitted_as_far_as_the_device_has_room(monkeypatch) -> None:
    add = Adding(monkeypatch, 400, running=1)
    most = 400 - add.headroom
    assert not add(most + 1)
    assert add(most - 100 - add.headroom)
    assert not add(101)
    assert add(100)


def test_what_a_running_stream_has_takes_no_room(monkeypatch) -> None:
    add = Adding(monkeypatch, 400, running=1, shared=50)
    most = 400 - add.headroom
    assert not add(most + 51)
    assert add(most + 50)


def test_alone_a_prompt_may_be_longer_than_the_device(monkeypatch) -> None:
    add = Adding(monkeypatch, 100)
    assert add(1000)
    assert not add(1), "then nothing else"


def test_where_the_policy_does_not_decide_admission_is_sglangs(monkeypatch) -> None:
    assert Adding(monkeypatch, 0, active=False, running=1)(1000)
