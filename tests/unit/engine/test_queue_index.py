"""The index of SGLang's queue, and streams that the engine has ended by itself."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lifecycle_bodies import EngineRig
from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.requests import TrackingScheduler

from tokenflow_sgl.contract import Decision, Mode, Phase
from tokenflow_sgl.engine.queue_index import QueueIndex
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths

STEPS = st.lists(st.tuples(st.sampled_from(["come", "go"]), st.integers(0, 9)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_the_index_is_of_the_present_queue(steps) -> None:
    queue: list[Any] = []
    index = QueueIndex(lambda req: req % 3 > 0)
    for what, number in steps:
        if what == "come" and number not in queue:
            queue.append(number)
        elif what == "go" and number in queue:
            queue.remove(number)
        assert index.look(queue).requests == set(queue)
        assert index.untracked == [req for req in queue if req % 3 == 0]


def test_an_engine_that_idles_holds_nothing_that_has_waited() -> None:
    rig = EngineRig(1000)
    slot = rig.add(Phase.WAITING)
    rig.apply(Decision(Mode.WORKING_SET, run=(slot,)))
    waited = weakref.ref(rig.table.request(slot))
    rig.table.forget(rig.table.request(slot), cut_off=True)
    rig.scheduler.waiting_queue.clear()
    rig.apply(Decision(Mode.IDLE))
    gc.collect()
    assert waited() is None


def test_an_unchanged_queue_is_not_looked_through() -> None:
    asked: list[int] = []
    index = QueueIndex(lambda req: bool(asked.append(req)) or True)
    for _ in range(3):
        index.look([1, 2])
    assert asked == [1, 2]


class Request:
    """As far as the table and the queue look into one."""

    def __init__(self) -> None:
        self.output_ids: list[int] = []
        self.send_token_offset = 0
        self.finished_reason = None


@pytest.fixture
def scheduler() -> Any:
    """Two streams wait beside a health check, one runs, one drains and one is paused."""
    made: Any = object.__new__(TrackingScheduler)
    made.tf_table = table = StreamTable(LimitLengths())
    made.streams = [Request() for _ in range(5)]
    for req in made.streams:
        table.track(req, prompt=5, limit=9, rate=9.0, qos_class="a", arrival=1.0, now=1.0)
    first, second, runs, drains, paused = made.streams
    made.waiting_queue = [first, Request(), second]
    made.result_queue, made.chunked_req = [], None
    made.batch = SimpleNamespace(reqs=[runs, Request()])
    made.tf_pauser = SimpleNamespace(draining=[drains], paused={paused: None})
    made.token_to_kv_pool_allocator = SimpleNamespace(available_size=lambda: 100)
    made.tree_cache = SimpleNamespace(
        evictable_size=lambda: 20, supports_swa=lambda: False, supports_mamba=lambda: False
    )
    made.chunked_prefill_size = None
    made.tf_actuator = EngineActuator(made, table, made.tf_pauser, None, None)
    made.lost = []
    made._tf_forget = lambda req, cut_off: (made.lost.append(req), table.forget(req, cut_off=True))
    made.tf_recorder = SimpleNamespace(lost=lambda: None)
    return made


def test_memory_that_is_lent_to_copies_is_free(scheduler) -> None:
    assert scheduler.tf_actuator.free == 120
    scheduler.tf_restorations = SimpleNamespace(copy_memory=SimpleNamespace(held_tokens=7))
    assert scheduler.tf_actuator.free == 127


def test_no_stream_is_dropped_while_all_are_somewhere(scheduler, monkeypatch) -> None:
    looked = []
    monkeypatch.setattr(scheduler.tf_table, "lost", lambda held: looked.append(held) or [])
    scheduler._tf_drop_lost(scheduler.batch, None)
    assert not looked, "nor are all looked through"
    scheduler.waiting_queue.pop()
    scheduler._tf_drop_lost(scheduler.batch, None)
    assert looked


@pytest.mark.parametrize("gone", range(5))
def test_a_stream_that_is_nowhere_is_dropped(scheduler, gone) -> None:
    req = scheduler.streams[gone]
    for place in (scheduler.waiting_queue, scheduler.batch.reqs, scheduler.tf_pauser.draining):
        if req in place:
            place.remove(req)
    scheduler.tf_pauser.paused.pop(req, None)
    scheduler.waiting_queue.append(Request())  # the queue is as long as it was
    scheduler._tf_drop_lost(scheduler.batch, None)
    assert scheduler.lost == [req]
    scheduler._tf_drop_lost(scheduler.batch, None)
    assert scheduler.lost == [req]


def test_what_is_in_flight_is_not_lost(scheduler) -> None:
    req = scheduler.batch.reqs.pop(0)
    scheduler._tf_drop_lost(scheduler.batch, SimpleNamespace(reqs=[req]))
    assert scheduler.lost == []


def test_a_stream_in_two_places_hides_no_lost_one(scheduler) -> None:
    first, second, *_ = scheduler.streams
    scheduler.batch.reqs.append(second)
    scheduler.waiting_queue.remove(first)
    scheduler._tf_drop_lost(scheduler.batch, None)
    assert scheduler.lost == [first]
