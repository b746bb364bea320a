"""Streams that are paused where KV is placed layer by layer: what they keep, and what they cost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder
from tokenflow_sgl.engine.layerwise.placed_actuator import PlacedActuator
from tokenflow_sgl.engine.layerwise.placed_scheduler import LOOKED_STEPS, TokenFlowPlacedScheduler

from tokenflow_sgl.engine.kv import preempt
from tokenflow_sgl.engine.layerwise import placed_pauser
from tokenflow_sgl.engine.layerwise.page_owners import PageOwners
from tokenflow_sgl.engine.layerwise.placed_adder import placed_adder_class
from tokenflow_sgl.engine.layerwise.placed_pauser import PlacedPauser
from tokenflow_sgl.engine.prefill_adder import AdmissionLimits

PAGE = 16


class Request:
    """One that runs, with so many tokens."""

    def __init__(self, rid: str, tokens: int = 20, row: int = 1) -> None:
        self.rid = rid
        self.origin_input_ids, self.output_ids = [7] * (tokens - 1), [8]
        self.kv = SimpleNamespace(holds_kv=True, kv_allocated_len=tokens, req_pool_idx=row)
        self.retraction_count = 0
        self.return_logprob = False

    def finished(self) -> bool:
        return False

    def reset_for_retract(self) -> None:
        self.retraction_count += 1
        assert not self.kv.holds_kv, "its row is given back before"


@pytest.fixture
def pauser(monkeypatch) -> PlacedPauser:
    def release(request: Any, _tree: Any, *, checkpoint: bool) -> None:
        request.kv.holds_kv, request.kept = False, checkpoint

    monkeypatch.setattr(placed_pauser, "release_kv_cache", release)
    monkeypatch.setattr(preempt, "release_kv_cache", release)
    tree = SimpleNamespace(supports_mamba=lambda: False)
    return PlacedPauser(tree, lambda request: None, lambda request: None)


def batch() -> Any:
    return SimpleNamespace(filter_batch=lambda reqs_to_exclude: None, batch_is_full=True)


def test_a_pause_keeps_row_and_pages(pauser) -> None:
    request = Request("a")
    pauser.preempt([request], batch(), set())
    assert pauser.placed == [request]
    assert request.retraction_count == 0


def test_where_the_weights_change_no_kv_is_kept(pauser) -> None:
    paused, drains = Request("a"), Request("b")
    pauser.preempt([paused], batch(), set())
    pauser.preempt([drains], batch(), {drains})
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
    first, second = Request("a"), Request("b")
    pauser.preempt([first, second], batch(), set())
    pauser.give_up(second)
    assert second.kept
    assert pauser.placed == [first]
    assert [*pauser.paused] == [first, second]


def test_what_steps_carry_counts_as_the_devices() -> None:
    owners, plans = PageOwners(40), SimpleNamespace(paused=frozenset())
    executor = SimpleNamespace(owners=owners, plans=plans)
    pool = SimpleNamespace(executor=executor, page_size=PAGE)
    runs, drains = Request("a", 20, row=1), Request("b", 16, row=2)
    scheduler = SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: pool),
        page_size=PAGE,
        max_total_num_tokens=60 * PAGE,
        tf_clock=SimpleNamespace(host_total=35 * PAGE),
        tree_cache=None,
        chunked_req=None,
        result_queue=[(SimpleNamespace(reqs=[runs, drains]), None)],
    )
    actuator = PlacedActuator.__new__(PlacedActuator)
    actuator._scheduler, actuator.pools = scheduler, SimpleNamespace(window_total=0)
    actuator._pauser = SimpleNamespace(draining=[drains])
    actuator._batch = SimpleNamespace(reqs=[runs])
    assert actuator.total == 25 * PAGE, "what the leader says that steps carry"
    assert actuator.free == (25 - 2 - 1) * PAGE, "each stream once, and whole pages"
    assert actuator.free_share == 22 / 25
    assert actuator.left == actuator.free
    scheduler.chunked_req = half = Request("c", 32, row=3)
    half.seqlen, half.prefix_len = 100, 32
    scheduler.tf_split = None
    assert actuator.free == (25 - 2 - 1 - 2) * PAGE
    assert actuator.left == actuator.free - 68, "what is left of the prompt"
    owners.read(1, np.array([5, 6]), ())
    owners.read(2, np.array([5]), ())
    assert actuator.shared(drains) == PAGE
    assert actuator.free == (25 - 2 - 2) * PAGE, "what two of them read is counted once"
    plans.paused = frozenset({1})
    drains.kv.holds_kv, drains.prefix_len = False, 16
    assert actuator.free == (25 - 2 - 2) * PAGE, "a result of what was thrown out is in flight"
    drains.kv.holds_kv = True
    assert actuator.shared(drains) == 0, "the other one is paused, and has no claim"


def test_the_leader_says_now_and_then_what_steps_carry() -> None:
    """Policy and ranks would see another memory in each pass."""
    executor = SimpleNamespace(pages_at_once=25, steps=0)
    scheduler: Any = SimpleNamespace(
        tf_actuator=SimpleNamespace(executor=executor),
        tf_looked=0,
        tf_carried=0,
        max_total_num_tokens=60 * PAGE,
        page_size=PAGE,
    )
    host = TokenFlowPlacedScheduler._tf_host_tokens
    assert host(scheduler) == 35 * PAGE
    executor.pages_at_once, executor.steps = 31, LOOKED_STEPS - 1
    assert host(scheduler) == 35 * PAGE
    executor.steps += 1
    assert host(scheduler) == 29 * PAGE
    executor.pages_at_once, executor.steps = 80, 2 * LOOKED_STEPS
    assert host(scheduler) == 0, "there are no more pages than SGLang has"


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
        self.adder.running_batch = SimpleNamespace(reqs=[Request("runs")] * running)

    def __call__(self, tokens: int) -> bool:
        return bool(self.adder.add_one_req(Request("new", tokens)) is AddReqResult.CONTINUE)


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
