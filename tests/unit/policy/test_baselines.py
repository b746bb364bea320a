"""The policies to compare with, on cases worked out by hand."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tokenflow_sgl.contract import Mode, Phase, Way
from tokenflow_sgl.policy.baselines import AndesPolicy, LeastSlackPolicy, RoundRobinPolicy
from tokenflow_sgl.policy.baselines.ordered import OrderedMemo

DUE = OrderedMemo(planned=-math.inf)


def out(decision) -> tuple[tuple[int, ...], list[int]]:
    return decision.run, [preemption.slot for preemption in decision.preempt]


@pytest.fixture(params=[LeastSlackPolicy, RoundRobinPolicy, AndesPolicy])
def policy(request):
    return request.param()


def test_without_stress_they_stay_out_of_the_way(policy, make_state, make_stream) -> None:
    assert policy.decide(make_state([make_stream(), make_stream()])).mode is Mode.IDLE
    assert policy.decide(make_state([])).mode is Mode.IDLE


def test_between_two_rankings_the_plan_stands(policy, make_state, make_stream) -> None:
    rows = [make_stream(slack=50.0), make_stream(Phase.PAUSED, slack=0.1)]
    just = OrderedMemo(planned=99.99, plan=(11,))
    decision = policy.decide(make_state(rows, total=300, memo=just))
    assert out(decision) == ((11,), [])
    assert decision.memo is just


def test_a_plan_is_not_for_whom_comes_into_the_slot_of_one_that_ended(
    policy, make_state, make_stream
) -> None:
    rows = [make_stream(slack=50.0), make_stream(Phase.WAITING, arrival=99.995)]
    just = OrderedMemo(planned=99.99, plan=(11, 12))
    assert out(policy.decide(make_state(rows, total=300, memo=just))) == ((), [])


def test_all_streams_are_admitted(policy, make_state, make_stream) -> None:
    rows = [make_stream(), *[make_stream(Phase.WAITING)] * 3]
    assert policy.decide(make_state(rows, total=250)).admit == (11, 12, 13)


def test_a_stream_that_cannot_be_preempted_keeps_its_memory(
    policy, make_state, make_stream
) -> None:
    rows = [
        make_stream(slack=50.0, preemptible=False),
        make_stream(Phase.PAUSED, slack=0.1, since=50.0),
    ]
    assert out(policy.decide(make_state(rows, total=300))) == ((), [])
    assert out(policy.decide(make_state(rows, total=500))) == ((11,), [])


def test_one_that_fits_beside_no_reserve_runs_alone(policy, make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, prompt=290)]
    assert policy.decide(make_state(rows, total=291)).run == (10,)


# 200 tokens each; 400 fit two of them and a reserve of 24 steps for one running stream.
def test_least_slack_runs_the_streams_that_run_dry_first(make_state, make_stream) -> None:
    rows = [
        make_stream(slack=9.0),
        make_stream(Phase.PAUSED, slack=2.0),
        make_stream(Phase.PAUSED, slack=-3.0),
        make_stream(Phase.PAUSED, slack=5.0),
    ]
    assert out(LeastSlackPolicy().decide(make_state(rows, total=424))) == ((12, 11), [10])


def test_a_newcomer_is_due_since_its_arrival(make_state, make_stream) -> None:
    rows = [make_stream(slack=-0.5), make_stream(Phase.WAITING, prompt=200)]  # came 1 s ago
    assert out(LeastSlackPolicy().decide(make_state(rows, total=224))) == ((11,), [10])


def test_round_robin_takes_turns(make_state, make_stream) -> None:
    rows = [
        make_stream(since=97.0),  # its two seconds are over
        make_stream(since=99.0),
        make_stream(Phase.PAUSED, since=95.0),
        make_stream(Phase.PAUSED, since=90.0),
    ]
    assert out(RoundRobinPolicy(quantum=2.0).decide(make_state(rows, total=448))) == ((13,), [10])
    # With no other stream to run the quantum goes on.
    assert out(RoundRobinPolicy().decide(make_state(rows[:2], total=448))) == ((), [])


def test_andes_gains_what_waiting_would_lose(make_state, make_stream) -> None:
    rows = [
        # 300 of 400 tokens to read at 10/s; the slack covers 0.4 of the second.
        make_stream(Phase.PAUSED, slack=0.4),
        make_stream(Phase.PAUSED, slack=5.0),
        # Came 0.2 s ago: the first token may take 0.8 s more.
        make_stream(Phase.WAITING, arrival=99.8),
    ]
    state = make_state(rows)
    whole = 400 * 400 / 20
    assert AndesPolicy().gain(state, state.streams.slot - 10) == pytest.approx(
        [0.6 * 300 / whole, 0.0, 0.2 * 400 / whole]
    )


def test_andes_preempts_once_per_request_on_average(make_state, make_stream) -> None:
    rows = [make_stream(slack=50.0) for _ in range(3)]
    rows += [make_stream(Phase.PAUSED, slack=0.0) for _ in range(2)]
    rows += [make_stream(Phase.WAITING, arrival=90.0)]  # a newcomer brings one preemption
    left = dataclasses.replace(DUE, switches=0.5)
    decision = AndesPolicy().decide(make_state(rows, total=700, memo=left))
    assert len(decision.preempt) == 3  # the last choice within the budget is not cut
    assert decision.memo.switches == -1.5
    again = dataclasses.replace(DUE, switches=-1.5)
    rows[-1] = make_stream(Phase.PAUSED, slack=0.0)
    assert AndesPolicy().decide(make_state(rows, total=700, memo=again)).preempt == ()


def test_andes_prefers_gain_per_token_of_memory_and_recomputes(make_state, make_stream) -> None:
    rows = [
        make_stream(slack=5.0),
        make_stream(Phase.PAUSED, slack=0.0, prompt=300),
        make_stream(Phase.PAUSED, slack=0.0, prompt=50),
    ]
    some = dataclasses.replace(DUE, switches=1.0)
    decision = AndesPolicy().decide(make_state(rows, total=260, memo=some))
    assert out(decision) == ((12,), [10])
    assert [(each.slot, each.way) for each in decision.restore] == [(12, Way.RECOMPUTE)]
    fresh = AndesPolicy().decide(make_state([make_stream(Phase.WAITING)], total=124))
    assert fresh.restore == ()
