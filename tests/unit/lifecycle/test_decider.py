"""The stand-in for the policy: idle decisions that stand, and failures that are survived."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any

import numpy as np
import pytest
from states import FIRST_SLOT, state, stream

from tokenflow_sgl.contract import Cause, Decision, Mode, Phase, Preempt, Prefill, State, Write
from tokenflow_sgl.lifecycle import Decider, Phases
from tokenflow_sgl.lifecycle.decider import IDLE_SECONDS


def seen() -> State:
    return state([stream()])


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


class Listener:
    """Counts what it hears."""

    def __init__(self) -> None:
        self.errors = 0
        self.modes: list[Mode] = []
        self.answers: list[Decision] = []

    def policy_pass(self, mode: Mode, seconds: float) -> None:
        assert seconds >= 0.0
        self.modes.append(mode)

    def policy_error(self) -> None:
        self.errors += 1

    def decided(self, state: Any, decision: Decision) -> None:
        self.answers.append(decision)


def arrived(count: int) -> Phases:
    phases = Phases(8)
    for slot in range(count):
        phases.arrive(slot, 0.0)
    return phases


def test_an_idle_decision_stands_until_something_changes() -> None:
    phases = arrived(1)
    policy = Scripted(Decision(Mode.IDLE))
    decider = Decider(policy, "scripted", phases, Listener())
    for _ in range(5):
        assert decider.decide(1.0, 1, 0.9, seen).mode is Mode.IDLE
    assert policy.calls == 1
    assert decider.stands_until(0.9) == 1.0 + IDLE_SECONDS
    assert decider.stands_until(0.1) == -math.inf
    phases.arrive(1, 1.0)
    decider.decide(1.0, 2, 0.9, seen)
    assert policy.calls == 2, "a stream came"
    phases.move(1, Phase.RUNNING, 1.0)
    decider.decide(1.0, 2, 0.9, seen)
    assert policy.calls == 3, "a stream moved"
    decider.decide(1.0 + IDLE_SECONDS, 2, 0.9, seen)
    assert policy.calls == 4, "time passed"
    decider.decide(1.0 + IDLE_SECONDS, 2, 0.1, seen)
    assert policy.calls == 5, "memory is short"


def test_the_policy_is_not_asked_about_no_streams() -> None:
    policy = Scripted(RuntimeError("must not be asked"))
    decider = Decider(policy, "scripted", arrived(0), Listener())
    assert decider.decide(0.0, 0, 1.0, seen).mode is Mode.IDLE


def test_a_failure_falls_back_counts_and_logs_once(caplog: pytest.LogCaptureFixture) -> None:
    heard = Listener()
    policy = Scripted(RuntimeError("broken"))
    decider = Decider(policy, "scripted", arrived(1), heard)
    with caplog.at_level(logging.ERROR):
        for _ in range(7):
            assert decider.decide(0.0, 1, 1.0, seen).mode is Mode.FALLBACK
    assert heard.errors == 7
    assert heard.modes == [Mode.FALLBACK] * 7
    assert len(caplog.records) == 1
    # What the policy remembered before it failed is still there when it recovers.
    policy.answer = Decision(Mode.WORKING_SET, memo="plan")
    decider.decide(0.0, 1, 1.0, seen)
    policy.answer = RuntimeError("again")
    assert decider.decide(0.0, 1, 1.0, seen).memo == "plan"
    assert heard.answers == [Decision(Mode.WORKING_SET, memo="plan")]


@pytest.mark.parametrize("answer", [None, (), "idle"])
def test_what_is_no_decision_is_a_failure(caplog: pytest.LogCaptureFixture, answer: Any) -> None:
    listener = Listener()
    decider = Decider(Scripted(answer), "scripted", arrived(1), listener)
    with caplog.at_level(logging.ERROR):
        assert decider.decide(0.0, 1, 1.0, seen).mode is Mode.FALLBACK
    assert listener.errors == 1
    assert "it must return a Decision" in caplog.text


def test_without_a_listener_failures_are_raised() -> None:
    """In a simulation no reader waits meanwhile: a broken policy must be seen."""
    decider = Decider(Scripted(RuntimeError("broken")), "scripted", arrived(1))
    with pytest.raises(RuntimeError, match="broken"):
        decider.decide(0.0, 1, 1.0, seen)


MALFORMED: dict[str, Any] = {
    "mode": "idle",
    "run": None,
    "admit": ("a",),
    "hidden": None,
    "preempt": (FIRST_SLOT,),
    "write": (Write(FIRST_SLOT, 0.5),),  # type: ignore[arg-type]
    "restore": FIRST_SLOT,
    "prefill": Prefill(limit=2.5),  # type: ignore[arg-type]
}
"""By field: what is no part of a decision, and would end the server where it is carried out."""


@pytest.mark.parametrize("field", MALFORMED)
def test_a_decision_with_anything_else_in_it_is_a_failure(
    caplog: pytest.LogCaptureFixture, field: str
) -> None:
    listener = Listener()
    said = {"mode": Mode.WORKING_SET, field: MALFORMED[field]}
    decider = Decider(Scripted(Decision(**said)), "scripted", arrived(1), listener)
    with caplog.at_level(logging.ERROR):
        assert decider.decide(0.0, 1, 1.0, seen).mode is Mode.FALLBACK
    assert listener.errors == 1 and not listener.answers
    assert f" in {field}; allowed is" in caplog.text


def test_a_decision_of_numpy_s_integers_and_lists_is_one() -> None:
    slots = np.arange(2)
    said: Any = {"run": list(slots), "admit": tuple(slots), "prefill": Prefill(limit=np.int64(64))}
    decider = Decider(
        Scripted(Decision(Mode.WORKING_SET, **said)), "scripted", arrived(2), Listener()
    )
    assert decider.decide(0.0, 2, 1.0, seen).mode is Mode.WORKING_SET


def test_what_rests_does_so_though_the_policy_fails() -> None:
    def resting() -> State:
        plain = seen()
        streams = dataclasses.replace(plain.streams, resting=np.ones(1, dtype=np.bool_))
        return dataclasses.replace(plain, streams=streams)

    decider = Decider(Scripted(RuntimeError("broken")), "scripted", arrived(1), Listener())
    decision = decider.decide(0.0, 1, 1.0, resting)
    assert decision.mode is Mode.FALLBACK
    assert decision.preempt == (Preempt(FIRST_SLOT, Cause.REST),)
    assert decision.hidden == {FIRST_SLOT}
