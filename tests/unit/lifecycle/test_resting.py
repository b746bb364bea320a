"""Streams whose readers have looked away do not run, whatever the policy is."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from states import FIRST_SLOT, state, stream

from tokenflow_sgl.contract import Cause, Decision, Mode, Phase, Pool, Preempt, State
from tokenflow_sgl.lifecycle.resting import AS_IF_AHEAD, decide
from tokenflow_sgl.policy import POLICY_NAMES, WorkingSetConfig, make_policy


class Scripted:
    """Says what it is told to, and keeps what it saw."""

    def __init__(self, **decision: Any) -> None:
        self.decision = Decision(**decision)
        self.seen: State | None = None

    def decide(self, state: State) -> Decision:
        self.seen = state
        return self.decision


def rests(rows: list[dict[str, Any]], *resting: int, **given: Any) -> State:
    plain = state(rows, **given)
    marked = np.isin(np.arange(len(rows)), resting)
    due = np.where(marked, np.inf, plain.streams.next_due)
    streams = dataclasses.replace(plain.streams, resting=marked, next_due=due)
    return dataclasses.replace(plain, streams=streams)


def slots(*index: int) -> tuple[int, ...]:
    return tuple(FIRST_SLOT + each for each in index)


def test_without_a_resting_stream_the_policy_answers_as_it_is() -> None:
    policy = Scripted(mode=Mode.IDLE)
    seen = rests([stream()])
    assert decide(policy, seen) is policy.decision
    assert policy.seen is seen


def test_a_running_stream_is_preempted_though_the_engine_s_own_policy_decides() -> None:
    answer = decide(Scripted(mode=Mode.IDLE, memo="mine"), rests([stream(), stream()], 1))
    assert (answer.mode, answer.memo) == (Mode.IDLE, "mine")
    assert answer.preempt == (Preempt(FIRST_SLOT + 1, Cause.REST),)
    assert answer.hidden == {FIRST_SLOT + 1}


def test_the_policy_sees_only_what_is_in_a_batch_and_that_far_ahead() -> None:
    rows = [stream(Phase.PAUSED), stream(preemptible=False), stream(Phase.LOADING), stream()]
    policy = Scripted(mode=Mode.WORKING_SET, run=slots(3))
    answer = decide(policy, rests(rows, 0, 1, 2))
    assert policy.seen is not None and policy.seen.streams.resting is None
    assert tuple(policy.seen.streams.slot.tolist()) == slots(1, 3)
    assert policy.seen.slack.tolist() == [AS_IF_AHEAD, 5.0]
    assert answer.run == slots(3) and answer.preempt == ()


def test_no_stream_is_preempted_twice() -> None:
    own = (Preempt(FIRST_SLOT, Cause.PARK),)
    policy = Scripted(mode=Mode.WORKING_SET, preempt=own)
    assert decide(policy, rests([stream(), stream()], 0)).preempt == own


def test_what_the_policy_says_of_the_others_stands() -> None:
    policy = Scripted(mode=Mode.WORKING_SET, until=130.0, memo="mine")
    answer = decide(policy, rests([stream(Phase.PAUSED), stream(Phase.PAUSED)], 0))
    assert (answer.run, answer.until, answer.memo) == ((), 130.0, "mine")
    assert answer.hidden == {FIRST_SLOT}


def test_who_rests_still_needs_the_memory_that_it_was_promised() -> None:
    rows = [stream(Phase.PAUSED), stream(Phase.PAUSED), stream(Phase.WAITING)]
    policy = Scripted(mode=Mode.IDLE)
    decide(policy, rests(rows, 0, 2, host=1000))
    assert policy.seen is not None
    assert 400 < policy.seen.memory.host.kv.total < 1000 - 100, "of one that has begun"
    decide(policy, rests(rows, 0, 1, host=100))
    assert policy.seen.memory.host.kv.total < -300, "the rest of it is the device's"


def test_who_rests_still_needs_the_place_of_its_state() -> None:
    rows = [stream(Phase.PAUSED), stream(Phase.PAUSED), stream(Phase.WAITING)]
    seen, policy = rests(rows, 0, 2), Scripted(mode=Mode.IDLE)
    host = dataclasses.replace(seen.memory.host, state=Pool(5))
    decide(policy, dataclasses.replace(seen, memory=dataclasses.replace(seen.memory, host=host)))
    assert policy.seen is not None
    assert policy.seen.memory.host.state.total == 4, "the one that waits has none yet"


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_under_stress_with_every_policy(name) -> None:
    rows = [stream(slack=float(i)) for i in range(8)]
    rows += [stream(Phase.PAUSED, slack=0.1 * i) for i in range(8)]
    rows += [stream(Phase.WAITING) for _ in range(4)]
    crowded = rests(rows, 1, 2, 9, 17, total=2000, free=100)
    answer = decide(make_policy(name, WorkingSetConfig()), crowded)
    preempted = {each.slot for each in answer.preempt}
    assert {FIRST_SLOT + 1, FIRST_SLOT + 2} <= preempted
    touched = {*answer.run, *answer.admit, *(each.slot for each in answer.restore)}
    assert not touched & set(slots(1, 2, 9, 17))
