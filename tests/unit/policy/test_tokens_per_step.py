"""With speculation a decode step gives a stream several tokens: what policies make of it."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import states

from tokenflow_sgl.contract import Phase, State
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import admissible
from tokenflow_sgl.policy.headroom import headroom
from tokenflow_sgl.policy.parking import next_share
from tokenflow_sgl.policy.prefill import prefill_gate
from tokenflow_sgl.policy.slo_admission import forecast
from tokenflow_sgl.policy.supply import Supply, modelled, supplied
from tokenflow_sgl.policy.working_set import WorkingSetMemo, WorkingSetPolicy

CONFIG = WorkingSetConfig()
NO_STREAMS = np.zeros(0, dtype=np.int64)


def test_a_token_takes_a_part_of_a_step() -> None:
    costs = dataclasses.replace(states.COSTS, tokens_per_step=2.5)
    assert costs.token_seconds(8, 1000) == pytest.approx(costs.decode_seconds(8, 1000) / 2.5)
    assert states.COSTS.token_seconds(8, 1000) == states.COSTS.decode_seconds(8, 1000)


def priced(state: State) -> Supply:
    return modelled(state, 500.0, 500.0)


@pytest.mark.parametrize("kv_rate", [float("nan"), 1e6])
def test_the_engine_supplies_so_many_times_the_tokens(make_state, make_stream, kv_rate) -> None:
    rows = [make_stream()] * 4
    plain = make_state(rows, kv_rate=kv_rate)
    drafts = make_state(rows, kv_rate=kv_rate, tokens_per_step=2.5)
    for of in (priced, lambda state: supplied(state, 500.0, 500.0, 1.2)):
        assert of(drafts).speed == pytest.approx(2.5 * of(plain).speed)
        assert of(drafts).token_cost == pytest.approx(of(plain).token_cost / 2.5)


def test_rows_of_drafts_cost_the_same_at_any_length(make_state, make_stream) -> None:
    """What was reckoned at short contexts holds at long ones, unlike where rows count as KV."""
    state = make_state([make_stream()] * 4, total=100_000, tokens_per_step=2.5, ahead=8)
    short, long = (modelled(state, each, each) for each in (200.0, 800.0))
    cost = short.token_cost * (800.0 + short.row)
    assert cost == pytest.approx(long.token_cost * (800.0 + long.row), rel=0.04)
    assert short.row == pytest.approx(long.row, rel=0.05)
    plain = make_state([make_stream()] * 4, total=100_000, tokens_per_step=2.5)
    one, other = (modelled(plain, each, each) for each in (200.0, 800.0))
    assert (one.row, other.row) == (0.0, 0.0)
    assert 800.0 * one.token_cost > 1.3 * 800.0 * other.token_cost


def test_a_fit_that_gives_rows_the_whole_step_is_priced(make_state, make_stream) -> None:
    """As one of few steps does: nothing grows with the context, and each still has a price."""
    costs = StepCosts(decode=(0.0, 0.004, 0.0))
    state = make_state([make_stream()] * 4, total=1000, ahead=8, tokens_per_step=2.0, costs=costs)
    supply = modelled(state, 92.0, 92.0)
    # Ten streams of 92 and 8 tokens fit; each waits for ten rows to get two tokens.
    assert supply.token_cost * (100.0 + supply.row) == pytest.approx(0.04 / 2.0 / 1000 * 100.0)
    assert math.isfinite(headroom(state, WorkingSetConfig()))


def test_what_was_measured_counts_for_rows_and_context(make_state, make_stream) -> None:
    row = {"total": 100_000, "tokens_per_step": 2.5, "ahead": 8}
    state = make_state([make_stream()] * 4, kv_rate=4e6, **row)
    supply = supplied(state, 500.0, 500.0, 1.2)
    assert supply.token_cost * (500.0 + supply.row) == pytest.approx(500.0 / (4e6 * 2.5))


def test_slots_of_drafts_are_memory_that_serves_no_context(make_state, make_stream) -> None:
    rows = [make_stream()] * 4
    assert priced(make_state(rows, ahead=100)).speed > priced(make_state(rows)).speed, "fewer rows"


def test_more_newcomers_join_where_steps_give_more(make_state, make_stream) -> None:
    readers = [make_stream(slack=2.0, rate=100.0) for _ in range(16)]
    waiting = [
        make_stream(Phase.WAITING, arrival=99.0 + 0.001 * each, rate=100.0, prompt=10)
        for each in range(200)
    ]
    joined = [
        len(
            admissible(
                make_state(readers + waiting, total=6_000, tokens_per_step=each), CONFIG
            ).join
        )
        for each in (1.0, 2.5)
    ]
    assert 0 < joined[0] < joined[1]


def test_a_router_hears_of_it(make_state, make_stream) -> None:
    rows = [make_stream()] * 4
    assert headroom(make_state(rows, tokens_per_step=2.5, total=10**6), CONFIG) > (
        headroom(make_state(rows, total=10**6), CONFIG)
    )


def test_memory_is_forecast_to_be_used_up_sooner(make_state, make_stream) -> None:
    rows = [make_stream()] * 4
    plain, drafts = make_state(rows), make_state(rows, tokens_per_step=2.5, ahead=8)
    assert forecast(plain) - forecast(drafts) == pytest.approx(4 * (8 + 1.5 * 64))


def test_decoding_keeps_pace_with_longer_prefills(make_state, make_stream) -> None:
    rows = [make_stream(slack=-1.0, rate=20.0)]
    plain, drafts = make_state(rows), make_state(rows, tokens_per_step=2.5)
    assert (
        prefill_gate(drafts, CONFIG, NO_STREAMS).limit
        > prefill_gate(plain, CONFIG, NO_STREAMS).limit
    )


def test_parking_expects_the_tokens_of_drafts(make_state, make_stream) -> None:
    """A throughput that is fine without speculation is too little with it."""
    rows = [make_stream()] * 20
    plain = make_state(rows, throughput=20 / states.COSTS.decode_seconds(20, 4000.0))
    config = dataclasses.replace(CONFIG, park=True)
    assert next_share(plain, config, 0.9) < 0.9
    costs = dataclasses.replace(plain.costs, tokens_per_step=2.5)
    assert next_share(dataclasses.replace(plain, costs=costs), config, 0.9) > 0.9


@pytest.mark.parametrize(("free", "preempted"), [(76, False), (75, True)])
def test_streams_are_preempted_before_drafts_lack_memory(
    make_state, make_stream, free, preempted
) -> None:
    """Four steps of 2.5 tokens and eight slots for drafts, of four streams: 72; and two paused."""
    rows = [make_stream(slack=10.0 + each) for each in range(4)]
    state = make_state(
        [*rows, make_stream(Phase.PAUSED, slack=30.0)],
        free=free - 4,
        tokens_per_step=2.5,
        ahead=8,
    )
    decision = WorkingSetPolicy().decide(state)
    assert bool([p for p in decision.preempt if p.cause.name == "MEMORY"]) is preempted
    assert np.isfinite(state.growth.headroom)


def paused(make_stream, slack):
    return [make_stream(slack=9.0), make_stream(Phase.PAUSED, slack=slack, ready=True)]


@pytest.mark.parametrize(
    ("planned", "slack", "ahead", "run"),
    [
        (99.9, 20.0, 8, ()),  # with the next plan, beside others
        (99.9, 20.0, 0, (11,)),  # its row is in a mixed step
        (99.9, 0.1, 8, (11,)),  # its reader would stall by then
        (99.0, 20.0, 8, (11,)),  # a plan is due
    ],
)
def test_streams_resume_together_beside_drafts(
    make_state, make_stream, planned, slack, ahead, run
) -> None:
    memo = WorkingSetMemo(planned=planned, plan=(11,))
    state = make_state(paused(make_stream, slack), memo=memo, ahead=ahead)
    decision = WorkingSetPolicy().decide(state)
    assert (decision.run, decision.memo.plan) == (run, (11,))


def test_a_stream_resumes_beside_a_prompt_or_where_nothing_runs(make_state, make_stream) -> None:
    plan = WorkingSetMemo(planned=99.9, plan=(11, 12))
    asked = [make_stream(Phase.WAITING, admitted=True, arrival=99.0)]
    both = make_state([*paused(make_stream, 20.0), *asked], memo=plan, ahead=8)
    assert set(WorkingSetPolicy().decide(both).run) == {11, 12}
    alone = [make_stream(Phase.PAUSED, slack=20.0, ready=True) for _ in range(2)]
    assert WorkingSetPolicy().decide(make_state(alone, memo=plan, ahead=8)).run
