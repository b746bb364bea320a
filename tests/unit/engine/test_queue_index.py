"""The index of SGLang's queue, and streams that the engine has ended by itself."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from fakes.engine import add, book_of, core_of, unified_body
from fakes.sglang import Batch, Request, Scheduler, Tree
from hypothesis import given, settings
from hypothesis import strategies as st
from lifecycle_bodies import EngineRig

from tokenflow_sgl.contract import Decision, Mode, Phase
from tokenflow_sgl.engine.extension import Extension, Extensions
from tokenflow_sgl.engine.queue_index import QueueIndex
from tokenflow_sgl.engine.telemetry.prometheus import Recorder

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
    rig.body.forget(waited())
    rig.book.forget(waited(), cut_off=True)
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


class Lends(Extension):
    """Holds memory of seven tokens."""

    lent_tokens = 7


def test_memory_that_is_lent_to_copies_is_free() -> None:
    scheduler = Scheduler(lambda: 100, tree_cache=Tree(evictable=20))
    extensions = Extensions()
    body = unified_body(scheduler, book_of(scheduler), extensions=extensions)
    assert body.free == 120
    extensions.add(Lends())
    assert body.free == 127


class Counts(Recorder):
    """Counts streams that the engine has ended by itself."""

    number = 0

    def lost(self) -> None:
        self.number += 1


class Engine:
    """Two streams wait beside a health check, one runs, one drains and one is paused."""

    def __init__(self) -> None:
        scheduler: Any = Scheduler()
        self.recorder = Counts()
        self.core = core_of(scheduler, recorder=self.recorder)
        self.streams = [Request(f"r{number}") for number in range(5)]
        for req in self.streams:
            add(self.core.book, req)
        first, second, runs, drains, paused = self.streams
        self.queue = scheduler.waiting_queue = [first, Request("health"), second]
        self.batch = Batch(runs, Request("health"))
        self.pauser = self.core.body.pauser
        self.pauser.draining.append(drains)
        self.pauser.paused[paused] = None

    def look(self, last: Any = None) -> list[Any]:
        """Those of the streams that are forgotten after the core has looked."""
        self.core._drop_lost(self.batch, last)
        return [req for req in self.streams if req not in self.core.table]


@pytest.fixture
def engine() -> Engine:
    return Engine()


def test_no_stream_is_dropped_while_all_are_somewhere(engine, monkeypatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(engine.core.table, "lost", lambda held: looked.append(held) or [])
    engine.look()
    assert not looked, "nor are all looked through"
    engine.queue.pop()
    engine.look()
    assert looked


@pytest.mark.parametrize("gone", range(5))
def test_a_stream_that_is_nowhere_is_dropped(engine, gone) -> None:
    req = engine.streams[gone]
    for place in (engine.queue, engine.batch.reqs, engine.pauser.draining):
        if req in place:
            place.remove(req)
    engine.pauser.paused.pop(req, None)
    engine.queue.append(Request("health"))  # the queue is as long as it was
    for _ in range(2):
        assert engine.look() == [req]
        assert engine.recorder.number == 1
    assert req.rid not in engine.core.book.by_rid


def test_one_that_has_ended_is_not_counted_as_lost(engine) -> None:
    req = engine.batch.reqs.pop(0)
    req.finished_reason = "stop"
    assert engine.look() == [req]
    assert engine.recorder.number == 0


def test_what_is_in_flight_is_not_lost(engine) -> None:
    req = engine.batch.reqs.pop(0)
    assert engine.look(Batch(req)) == []
    engine.core.scheduler.result_queue = [(Batch(req), None)]
    assert engine.look() == []
    engine.core.scheduler.result_queue = []
    engine.core.scheduler.chunked_req = req
    assert engine.look() == []


def test_a_stream_in_two_places_hides_no_lost_one(engine) -> None:
    first, second, *_ = engine.streams
    engine.batch.reqs.append(second)
    engine.queue.remove(first)
    assert engine.look() == [first]
