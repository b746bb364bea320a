"""Reading pace while there is room for all streams."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tokenflow_sgl.contract import Cause, Decision, Mode, Phase, Prefill, State
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.pacing import LOW_SECONDS, paced, room_for_all

CONFIG = WorkingSetConfig(pace=True)
# A tenth of 400 tokens at 10/s: stretches of 4 s.
HIGH = LOW_SECONDS + 4.0


def rests(state: State) -> Decision:
    return paced(state, CONFIG, np.zeros(len(state.streams)))[0]


def test_it_is_an_option(make_state, make_stream) -> None:
    rows = [make_stream(slack=60.0)]
    assert WorkingSetPolicy().decide(make_state(rows)).mode is Mode.IDLE
    decision = WorkingSetPolicy(CONFIG).decide(make_state(rows))
    assert decision.mode is Mode.WORKING_SET
    assert [(p.slot, p.cause) for p in decision.preempt] == [(10, Cause.PARK)]
    assert WorkingSetPolicy(CONFIG).decide(make_state([])).mode is Mode.IDLE


def test_a_stream_ahead_rests_and_one_that_is_nearly_read_goes_on(make_state, make_stream) -> None:
    rows = [
        make_stream(slack=HIGH - 0.1),
        make_stream(slack=HIGH + 0.1),
        make_stream(slack=60.0, preemptible=False),
        make_stream(slack=60.0, generated=395),  # at its end
        make_stream(Phase.PAUSED, slack=LOW_SECONDS + 0.1),
        make_stream(Phase.PAUSED, slack=LOW_SECONDS - 0.1),
        make_stream(Phase.PAUSED, slack=-2.0),
        make_stream(Phase.WAITING),
        make_stream(Phase.DRAINING, slack=0.0),
    ]
    decision = rests(make_state(rows))
    assert [p.slot for p in decision.preempt] == [11]
    assert decision.run == (17, 16, 15)  # newcomers first, then by slack
    assert decision.admit == (17,)
    assert decision.prefill == Prefill()
    assert decision.until == 100.0


def test_short_answers_come_in_stretches_worth_a_switch(make_state, make_stream) -> None:
    # A tenth of 20 tokens would be 2; eight are 0.8 s.
    rows = [make_stream(slack=LOW_SECONDS + s, generated=5, expected=20.0) for s in (0.7, 0.9)]
    assert [p.slot for p in rests(make_state(rows)).preempt] == [11]


@pytest.mark.parametrize(("total", "roomy"), [(667, True), (666, False)])
def test_only_while_there_is_room_for_all(make_state, make_stream, total, roomy) -> None:
    # 200 + 200 + 100 tokens, 100 promised; a tenth stays free.
    rows = [make_stream(), make_stream(Phase.PAUSED), make_stream(Phase.WAITING)]
    state = make_state(rows, total=total, free=0, promised=100)
    assert room_for_all(state) is roomy
    assert not room_for_all(make_state(rows, rows_limit=2))


def test_the_policy_is_not_asked_before_something_changes(make_state, make_stream) -> None:
    # A step of 50 ms brings a token that takes 100 ms to read: 50 ms gained.
    costs = StepCosts(decode=(0.05, 0.0, 0.0))
    running = make_stream(slack=HIGH - 0.2)
    until = rests(make_state([running], costs=costs)).until
    assert until == pytest.approx(100.0 + 4 * 0.05)
    paused = make_stream(Phase.PAUSED, slack=LOW_SECONDS + 0.1)
    assert rests(make_state([running, paused], costs=costs)).until == pytest.approx(100.1)
    assert rests(make_state([running])).until <= 101.0
    assert math.isfinite(rests(make_state([make_stream(slack=-5.0)])).until)


def test_newcomers_start_in_the_queues_order_beside_readers(make_state, make_stream) -> None:
    reader = make_stream(slack=0.02, rate=100.0)
    long = make_stream(Phase.WAITING, prompt=4000, arrival=99.0)
    short = make_stream(Phase.WAITING, prompt=50, arrival=99.1)
    decision = WorkingSetPolicy(CONFIG).decide(make_state([reader, long, short], total=100_000))
    assert decision.run == (12, 11), "the one with the highest response ratio first"
    assert decision.prefill.limit < CONFIG.prefill_chunk
    held = make_state(
        [reader, long, short],
        total=100_000,
        last_prefill_end=99.999,
        last_prefill_seconds=0.3,
    )
    assert WorkingSetPolicy(CONFIG).decide(held).prefill.hold


def test_without_a_reader_there_is_no_pace(make_state, make_stream) -> None:
    rows = [make_stream(slack=60.0, streaming=False), make_stream(Phase.WAITING, streaming=False)]
    assert WorkingSetPolicy(CONFIG).decide(make_state(rows)).mode is Mode.IDLE
