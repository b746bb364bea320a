"""Priorities that change: the higher one runs, and how long that lasts."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenflow_sgl.contract import Mode, Phase
from tokenflow_sgl.costs import Links, MeasuredLink
from tokenflow_sgl.policy.baselines import (
    FixedPriorityPolicy,
    MarkovPriorityPolicy,
    RandomPriorityPolicy,
)
from tokenflow_sgl.policy.baselines.priorities import ITERATION_SECONDS


@pytest.fixture
def crowd(make_state, make_stream):
    """400 streams that came one after the other."""
    rows = [make_stream(Phase.PAUSED, arrival=0.01 * number) for number in range(400)]
    return make_state(rows)


def ranks(policy, state, update):
    """All ranks at an update, in the middle of its time."""
    moved = dataclasses.replace(state, now=(update + 0.5) * policy.interval)
    return policy.rank(moved, np.arange(len(state.streams)))


def kept(policy, state):
    """Share of the streams that have the rank of the update before."""
    return np.mean(ranks(policy, state, 1000) == ranks(policy, state, 1001))


def test_an_update_comes_every_so_many_iterations():
    assert RandomPriorityPolicy(0.02).interval == pytest.approx(50 * ITERATION_SECONDS)


def test_random_priorities_have_no_memory(crowd):
    policy = RandomPriorityPolicy()
    assert kept(policy, crowd) == 0.0
    values = -ranks(policy, crowd, 5)
    assert (values >= 0.0).all()
    assert (values < 1.0).all()
    assert values.mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("locality", [0.5, 0.9])
def test_markov_priorities_are_kept_as_often_as_said(crowd, locality):
    assert kept(MarkovPriorityPolicy(locality=locality), crowd) == pytest.approx(locality, abs=0.06)


def test_fixed_priorities_stay_and_are_even(crowd):
    policy = FixedPriorityPolicy(levels=4)
    assert kept(policy, crowd) == 1.0
    levels, streams = np.unique(-ranks(policy, crowd, 3), return_counts=True)
    assert levels.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert (abs(streams - 100) < 30).all()


def test_a_higher_priority_takes_the_row_of_the_lowest(make_state, make_stream):
    """Two rows, taken by the first to come; then a stream comes that has the most."""
    policy = FixedPriorityPolicy(levels=4)
    turns = []
    for last in range(100):
        phases = (Phase.RUNNING, Phase.RUNNING, Phase.WAITING)
        rows = [
            make_stream(phase, arrival=arrival)
            for phase, arrival in zip(phases, (1.0, 2.0, 3.0 + last / 2), strict=True)
        ]
        state = make_state(rows, rows_limit=2)
        first, second, newcomer = ranks(policy, state, 0)
        decision = policy.decide(state)
        gone = [each.slot for each in decision.preempt]
        if newcomer < max(first, second):
            assert decision.run == (12,)
            # The later one among equals.
            assert gone == [10 if first > second else 11]
        else:
            assert (decision.run, gone) == ((), [])
        turns.append(bool(gone))
    assert 0 < sum(turns) < len(turns)


def test_the_same_moment_has_the_same_priorities(crowd):
    one, other = MarkovPriorityPolicy(), MarkovPriorityPolicy()
    assert (ranks(one, crowd, 7) == ranks(other, crowd, 7)).all()


def test_a_slot_that_is_used_again_has_priorities_of_its_own(make_state, make_stream):
    first = make_state([make_stream(Phase.PAUSED, arrival=1.0)])
    later = make_state([make_stream(Phase.PAUSED, arrival=2.0)])
    policy = RandomPriorityPolicy()
    assert ranks(policy, first, 9) != ranks(policy, later, 9)


def test_a_stream_that_falls_behind_gives_way_and_is_written_first(make_state, make_stream):
    """Three streams of 400 tokens, room for two of them."""
    shape = {"prompt": 200, "generated": 200, "slack": 9.0, "arrival": 0.0}
    rows = [
        make_stream(Phase.RUNNING, unwritten=200, **shape),
        make_stream(Phase.RUNNING, unwritten=200, **shape),
        make_stream(Phase.PAUSED, **shape),
    ]
    policy = RandomPriorityPolicy()
    state = make_state(rows, total=900, links=Links(MeasuredLink(1e6), MeasuredLink(1e6)))
    for update in range(100):
        order = np.argsort(ranks(policy, state, update), kind="stable")
        if order[-1] == 2:
            continue  # the one that is out has the least
        moved = dataclasses.replace(state, now=(update + 0.5) * policy.interval)
        decision = policy.decide(moved)
        assert decision.mode is Mode.WORKING_SET
        assert decision.run == (12,)
        assert [p.slot for p in decision.preempt] == [10 + order[-1]]
        assert decision.write[0].slot == 10 + order[-1]
        return
    pytest.fail("it was never the third one's turn")


def test_proactive_writes_can_be_switched_off(make_state, make_stream):
    rows = [make_stream(Phase.RUNNING, unwritten=200), make_stream(Phase.PAUSED)]
    state = make_state(rows, links=Links(MeasuredLink(1e6), MeasuredLink(1e6)))
    assert RandomPriorityPolicy(ahead=False).decide(state).write == ()
    assert RandomPriorityPolicy().decide(state).write
