"""The stand-in for the policy: idle decisions that stand, and failures that are survived."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tokenflow_sgl.engine.deciding import IDLE_SECONDS, Decider
from tokenflow_sgl.engine.metrics import Recorder
from tokenflow_sgl.engine.offering import offer
from tokenflow_sgl.engine.tracking import StreamTable
from tokenflow_sgl.policy import Decision, Mode, OutputLengths, Phase, Recollection


class Request:
    def __init__(self) -> None:
        self.output_ids: list[int] = []

    @property
    def send_token_offset(self) -> int:
        return len(self.output_ids)


class Scripted:
    """Answers what it is told; counts its calls."""

    def __init__(self, answer: Decision | Exception) -> None:
        self.answer = answer
        self.calls = 0

    def decide(self, state: Any) -> Decision:
        self.calls += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Errors(Recorder):
    count = 0

    def policy_error(self) -> None:
        self.count += 1


def tracked(*requests: Request) -> StreamTable[Request]:
    table: StreamTable[Request] = StreamTable(OutputLengths())
    for request in requests:
        track(table, request)
    return table


def track(table: StreamTable[Request], request: Request) -> int:
    return table.track(
        request, prompt=5, limit=9, rate=10.0, qos_class="reading", arrival=0.0, now=0.0
    )


def test_an_idle_decision_stands_until_something_changes() -> None:
    table = tracked(Request())
    policy = Scripted(Decision(Mode.IDLE))
    decider = Decider(policy, "scripted", table, Recorder())
    for _ in range(5):
        assert decider.decide(1.0, 0.9, lambda: None).mode is Mode.IDLE
    assert policy.calls == 1
    track(table, Request())
    decider.decide(1.0, 0.9, lambda: None)
    assert policy.calls == 2, "a stream came"
    decider.decide(1.0 + IDLE_SECONDS, 0.9, lambda: None)
    assert policy.calls == 3, "time passed"
    decider.decide(1.0 + IDLE_SECONDS, 0.1, lambda: None)
    assert policy.calls == 4, "memory is short"


def test_nobody_is_asked_about_no_streams() -> None:
    policy = Scripted(RuntimeError("must not be asked"))
    decider = Decider(policy, "scripted", tracked(), Recorder())
    assert decider.decide(0.0, 1.0, lambda: None).mode is Mode.IDLE


def test_a_failure_falls_back_counts_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    errors = Errors()
    policy = Scripted(RuntimeError("broken"))
    decider = Decider(policy, "scripted", tracked(Request()), errors)
    with caplog.at_level(logging.ERROR):
        for _ in range(7):
            assert decider.decide(0.0, 1.0, lambda: None).mode is Mode.FALLBACK
    assert errors.count == 7
    assert len(caplog.records) == 1
    # What the policy remembered before it failed is still there when it recovers.
    policy.answer = Decision(Mode.WORKING_SET, recollection=Recollection(last_cycle=4.0))
    decider.decide(0.0, 1.0, lambda: None)
    policy.answer = RuntimeError("again")
    assert decider.decide(0.0, 1.0, lambda: None).recollection.last_cycle == 4.0


def test_the_decision_orders_what_is_offered_and_holds_the_rest_back() -> None:
    first, second, paused, unknown = Request(), Request(), Request(), Request()
    table = tracked(paused, first, second)
    table.move(paused, Phase.PAUSED, 0.0)
    decision = Decision(Mode.WORKING_SET, run=(table.slot(second), table.slot(paused), 77))
    offered = offer(decision, table, waiting=[first, second, unknown], paused=[paused], busy=True)
    assert offered == [unknown, second, paused]


@pytest.mark.parametrize(
    ("mode", "busy"), [(Mode.IDLE, True), (Mode.FALLBACK, True), (Mode.WORKING_SET, False)]
)
def test_everybody_is_offered_in_order_of_arrival(mode: Mode, busy: bool) -> None:
    early, late, waiting = Request(), Request(), Request()
    table = tracked(early, late, waiting)
    offered = offer(Decision(mode), table, waiting=[waiting], paused=[late, early], busy=busy)
    assert offered == [early, late, waiting]


def test_a_working_set_decision_may_leave_a_busy_engine_alone() -> None:
    waiting = Request()
    table = tracked(waiting)
    decision = Decision(Mode.WORKING_SET)
    assert offer(decision, table, waiting=[waiting], paused=[], busy=True) == []
