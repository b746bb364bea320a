"""Deadlines of whole answers: when a stream must run at the latest, and what is lost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenflow_sgl.contract import Mode, Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.deadlines import BEHIND, MARGIN, lost_deadlines, with_deadlines
from tokenflow_sgl.policy.queueing import Queue, queue_keys, waiting_queue
from tokenflow_sgl.policy.urgency import leeway

# A step takes 0.1 s, whatever is in it; a prefill 0.01 s per token.
COSTS = StepCosts(decode=(0.1, 0.0, 0.0), prefill=(0.0, 0.01, 0.0))


@pytest.fixture
def by(make_state):
    def make(rows, deadlines, **more):
        state = make_state(rows, costs=COSTS, **more)
        deadline = np.array([np.nan if each is None else each for each in deadlines])
        return dataclasses.replace(
            state, streams=dataclasses.replace(state.streams, deadline=deadline)
        )

    return make


def half_done(make_stream, **given):
    """It came 10 s ago and has 100 tokens to go, which take 10 s."""
    return make_stream(Phase.RUNNING, **{"expected": 200.0, "arrival": 90.0, **given})


def test_without_one_nothing_is_touched(make_state, make_stream) -> None:
    state = make_state([make_stream(), make_stream(Phase.WAITING)])
    assert with_deadlines(state) is state
    assert lost_deadlines(state) == 0


def test_slack_is_what_the_rest_of_the_answer_leaves(by, make_stream) -> None:
    seen = with_deadlines(by([half_done(make_stream), make_stream()], [50.0, None]))
    # 40 s are left, of which its 100 tokens take 10, and twice that for safety.
    assert leeway(seen)[0] == pytest.approx(40.0 - MARGIN * 10.0)
    assert seen.streams.rate[0] == pytest.approx(10.0 / MARGIN)
    assert leeway(seen)[1] == 5.0, "the other one has its reader's"
    assert seen.streams.rate[1] == 10.0


def test_a_newcomer_waits_until_its_prefill_must_begin(by, make_stream) -> None:
    row = make_stream(Phase.WAITING, arrival=90.0, prompt=100, expected=100.0)
    seen = with_deadlines(by([row], [50.0]))
    last = 40.0 - MARGIN * 10.0 - 1.0
    assert leeway(seen)[0] == pytest.approx(last)
    assert seen.streams.ttft_slo is not None
    assert seen.streams.ttft_slo[0] == pytest.approx(10.0 + last + 1.0)


def test_readers_who_wait_go_before_a_newcomer_with_time(by, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, arrival=99.0, expected=100.0)] * 2
    config = WorkingSetConfig()

    def first(deadline: float | None) -> int:
        seen = with_deadlines(by(rows, [deadline, None]))
        queue = waiting_queue(seen, Queue(), config)
        return int(np.argsort(queue_keys(seen, queue, config), kind="stable")[0])

    assert first(None) == 0, "it came first"
    assert first(300.0) == 1, "it has time"
    assert first(1.0 + 1.0 + MARGIN * 10.0 + 0.5) == 0, "it must begin"
    assert first(5.0) == 1, "it cannot be kept"


@pytest.mark.parametrize(("deadline", "lost"), [(15.0, True), (21.0, False)])
def test_what_is_lost_goes_behind(by, make_stream, deadline, lost) -> None:
    state = by([half_done(make_stream)], [deadline])
    seen = with_deadlines(state)
    assert lost_deadlines(state) == int(lost)
    assert bool(leeway(seen)[0] == BEHIND) is lost
    if not lost:
        assert leeway(seen)[0] == 0.0, "the margin is gone, and it needs every step"


def test_what_is_long_lost_is_served_at_last(by, make_stream) -> None:
    past = [half_done(make_stream, arrival=arrival) for arrival in (80.0, 20.0, -100.0)]
    seen = with_deadlines(by(past, [10.0] * 3))
    assert leeway(seen).tolist() == [BEHIND - 10.0, BEHIND - 70.0, BEHIND - 190.0]


def test_it_takes_memory_from_a_reader_who_is_far_ahead(by, make_stream) -> None:
    """And gives it to one who is about to stall."""
    ahead = make_stream(slack=60.0, since=0.0, expected=5000.0, generated=900)
    job = make_stream(Phase.PAUSED, expected=200.0, arrival=90.0, ready=False)

    def decided(deadline: float | None, slack: float):
        rows = [{**ahead, "slack": slack}, job]
        state = by(rows, [None, deadline], total=1100, free=0, host=20_000)
        return WorkingSetPolicy().decide(state)

    urgent = decided(25.0, 60.0)
    assert urgent.mode is Mode.WORKING_SET
    assert [each.slot for each in urgent.preempt] == [10]
    assert not decided(25.0, 1.0).preempt


def test_a_deadline_counts_for_requests_that_do_not_stream(by, make_stream) -> None:
    row = half_done(make_stream, streaming=False)
    assert with_deadlines(by([row], [50.0])).streams.streaming[0]
