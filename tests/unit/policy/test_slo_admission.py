"""LayerKV's rule with numbers worked by hand, and both rules in one object."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Lengths, Phase
from tokenflow_sgl.contract.lengths import GRID, LengthCurves
from tokenflow_sgl.costs import Links, MeasuredLink, StepCosts
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission_rules import AdmissionRules
from tokenflow_sgl.policy.prefill import prefill_gate
from tokenflow_sgl.policy.slo_admission import allowance, forecast, within_objectives

# A step takes 0.1 s whatever is in it, a prefilled token 1 ms.
COSTS = StepCosts(decode=(0.1, 0.0, 0.0), prefill=(0.0, 0.001, 0.0))
AMPLE = 1_000_000
CONFIG = WorkingSetConfig(admission="slo")
NO_STREAMS = np.zeros(0, dtype=np.int64)


# Stream: objective 0.2 s per token. It has 201 tokens in 20 s after the first, which might have
# taken 40 s, and 200 to come at 0.1 s each, which may take 40 s. It can bear 20 + 20 s of prefills.
@pytest.fixture
def decoding(make_stream):
    def make(**given):
        row = {"tpot_slo": 0.2, "first_text": 80.0, "generated": 201, "expected": 401.0}
        return make_stream(**{**row, **given})

    return make


@pytest.fixture
def newcomer(make_stream):
    def make(prompt=10_000, **given):
        return make_stream(Phase.WAITING, prompt=prompt, **{"rate": 1.0, **given})

    return make


@pytest.fixture
def joins(make_state):
    def ask(rows, rule="slo", **given):
        given = {"total": AMPLE, "costs": COSTS, **given}
        config = WorkingSetConfig(admission=rule)
        return AdmissionRules(config).join(make_state(rows, **given)).join.tolist()

    return ask


def bearable(state, newcomers=1) -> list[float]:
    """The allowance with 1, 2, ... newcomers that have no context."""
    members = state.streams.member
    context = np.full(newcomers, float(state.streams.length[members].sum()))
    count = np.count_nonzero(members) + np.arange(1.0, newcomers + 1)
    return allowance(state, context, count).tolist()


def test_what_a_stream_can_bear_is_its_gain_so_far_and_to_come(make_state, decoding) -> None:
    state = make_state([decoding()], total=AMPLE, costs=COSTS)
    assert bearable(state) == [pytest.approx(40.0)]


def test_the_stream_that_can_bear_least_decides(make_state, decoding) -> None:
    # 201 tokens in 35 s: 5 s ahead so far.
    rows = [decoding(), decoding(first_text=65.0), decoding()]
    assert bearable(make_state(rows, total=AMPLE, costs=COSTS)) == [pytest.approx(25.0)]


def test_newcomers_join_while_their_prefills_are_below_it(joins, decoding, newcomer) -> None:
    # 10 s each: the fourth would make 40 of 40 s.
    assert joins([decoding(), *(newcomer() for _ in range(5))]) == [1, 2, 3]


def test_prefills_that_are_due_come_first(joins, decoding, newcomer) -> None:
    due = newcomer(15_000, admitted=True)
    assert joins([decoding(), due, newcomer(), newcomer(), newcomer()]) == [2, 3]


def test_without_an_objective_the_reader_decides(make_state, decoding) -> None:
    # 5 tokens/s: 0.2 s each. 8 s unread and 0.2 s that the last token is read; 20 s to come.
    row = decoding(tpot_slo=math.nan, rate=5.0, slack=8.2)
    assert bearable(make_state([row], total=AMPLE, costs=COSTS)) == [pytest.approx(28.0)]


def test_streams_without_readers_and_newcomers_have_no_say(make_state, decoding, newcomer) -> None:
    rows = [decoding(streaming=False), newcomer(admitted=True)]
    assert bearable(make_state(rows, total=AMPLE, costs=COSTS)) == [math.inf]


def test_streams_that_take_turns_get_their_tokens_later(make_state, decoding) -> None:
    # 301 tokens of context in 150: half of the time, 0.2 s per token, nothing is gained any more.
    rows = [decoding()]
    state = make_state(rows, total=301, free=0, costs=COSTS)
    assert bearable(state) == [pytest.approx(40.0)]
    found = allowance(state, np.array([301.0, 602.0]), np.array([1.0, 2.0]))
    assert found.tolist() == pytest.approx([40.0, 20.0])


def test_rows_are_shared_in_turns_too(make_state, decoding) -> None:
    state = make_state([decoding()], total=AMPLE, rows_limit=1, costs=COSTS)
    found = allowance(state, np.array([301.0, 301.0]), np.array([1.0, 2.0]))
    assert found.tolist() == pytest.approx([40.0, 20.0])


def test_an_objective_out_of_reach_holds_no_stream_up(make_state, decoding) -> None:
    # 201 tokens in 100 s, 60 too many; 20 s to be gained.
    lost = decoding(first_text=0.0)
    rows = [lost, *(decoding() for _ in range(39))]
    assert bearable(make_state(rows, total=AMPLE, costs=COSTS)) == [pytest.approx(40.0)]


def test_none_joins_while_many_miss_theirs(joins, make_state, decoding, newcomer) -> None:
    rows = [decoding(first_text=0.0), *(decoding() for _ in range(10))]
    assert bearable(make_state(rows, total=AMPLE, costs=COSTS)) == [0.0]
    assert joins([*rows, newcomer(1)]) == []


def test_an_objective_that_no_stream_could_have_says_nothing(make_state, decoding) -> None:
    rows = [decoding(tpot_slo=0.05), decoding(tpot_slo=0.05), decoding()]
    assert bearable(make_state(rows, total=AMPLE, costs=COSTS)) == [pytest.approx(40.0)]


# Half of the answers end at 100 tokens, a tenth at 300, the others at 1,000.
STEPS = np.where(GRID < 100, 1.0, np.where(GRID < 300, 0.5, np.where(GRID < 1000, 0.4, 0.0)))
HALVES = LengthCurves(STEPS[None, :])


@pytest.mark.parametrize(
    ("generated", "share", "left"),
    [(0, 0.25, 100), (0, 0.5, 100), (0, 0.55, 300), (0, 0.75, 1000), (150, 0.1, 150),
     (150, 0.5, 850), (99, 0.25, 1), (999, 0.5, 1)],
)  # fmt: skip
def test_quantiles_of_what_is_left(generated, share, left) -> None:
    one = np.ones(1, dtype=np.int64)
    found = HALVES.quantile_left(0 * one, generated * one, 5000 * one, share)
    # The grid's points are three per cent apart.
    assert generated + found[0] == pytest.approx(generated + left, rel=0.03)


def test_what_is_left_ends_at_the_limit() -> None:
    ends = LengthCurves.certain().quantile_left(
        np.zeros(3, dtype=np.int64), np.array([0, 5, 20]), np.array([10, 10, 20]), 0.5
    )
    assert ends.tolist() == [10.0, 5.0, 1.0]


def test_gains_are_few_and_losses_many(make_state, decoding) -> None:
    # From 150 on, a quarter has 150 to come at most, half of the rest 850.
    row = decoding(generated=150, first_text=100.0 - 0.2 * 149, expected=5000.0)
    state = make_state([row], total=AMPLE, costs=COSTS)
    lengths = Lengths(HALVES, HALVES)
    state = dataclasses.replace(state, streams=dataclasses.replace(state.streams, lengths=lengths))
    end = float(GRID[np.searchsorted(GRID, 1000)])
    # A fifth ends at 300, so that a quarter has more.
    few = many = end - 150
    found = allowance(state, np.array([250.0, 2 * AMPLE]), np.array([2.0, 2.0]))
    assert found.tolist() == pytest.approx([few * 0.1, many * (0.2 - 0.2)])


def test_memory_is_forecast_to_its_lowest(make_state, make_stream) -> None:
    # 1000 - 230 free, less a page of 10 for each. Ten tokens end the first: it gives 110 back.
    rows = [make_stream(generated=10, expected=20.0), make_stream(generated=20, expected=500.0)]
    state = make_state(rows, total=1000, page=10)
    # Stage 8: 16 tokens more. Stage 64: 10 + 64 less, 120 back.
    assert forecast(state) == 1000 - 230 - 20 - 16
    few = make_state(rows[:1], total=1000, page=10)
    assert forecast(few) == 1000 - 110 - 10 - 8
    assert forecast(make_state([], total=1000)) == 1000


def test_draining_streams_give_their_memory_back(make_state, make_stream) -> None:
    rows = [make_stream(Phase.DRAINING)]
    assert forecast(make_state(rows, total=1000, promised=50)) == 1000 - 50


def test_none_joins_where_turns_are_too_slow_for_it_or_those_before_it(joins, newcomer) -> None:
    # 100 tokens of 200 each, 0.1 s per step: three streams take turns of 0.15 s per token.
    rows = [newcomer(100, rate=5.0, admitted=True), *(newcomer(100, rate=5.0) for _ in range(6))]
    assert joins(rows, total=200, host=AMPLE) == [1, 2, 3]
    assert joins([newcomer(100, rate=7.0, admitted=True), *rows[1:]], total=200, host=AMPLE) == [1]
    assert joins([*rows[:2], newcomer(100, rate=7.0), *rows[2:]], total=200, host=AMPLE) == [1]
    # It waits for the whole answer, or wants more than the engine can give: neither holds others.
    for first in (newcomer(100, streaming=False, admitted=True), newcomer(100, rate=50.0)):
        assert joins([first, *rows[1:]], total=200, host=AMPLE)[-1] == 3


def test_what_does_not_stay_counts_with_its_copy(joins, decoding, newcomer) -> None:
    links = Links(store=MeasuredLink(rate=500.0))  # 10,000 tokens take 20 s, twice their prefill
    # It has gained 45 s, and is at its end.
    ends = decoding(tpot_slo=0.4, first_text=65.0, expected=202.0)
    rows = [ends, newcomer(), newcomer(), newcomer()]
    assert joins(rows, links=links) == [1, 2, 3]
    # There is memory for the first: 10 + 20 s, and the third would make 50.
    assert joins(rows, links=links, total=11_000, host=AMPLE) == [1, 2]
    assert joins(rows, total=11_000, host=AMPLE) == [1, 2, 3]  # the link is not known yet


def test_device_and_host_hold_all_that_join(joins, decoding, newcomer) -> None:
    rows = [decoding(), newcomer(), newcomer(), newcomer()]
    assert joins(rows, total=11_000, host=0) == [1]
    assert joins(rows, total=11_000, host=17_600) == [1, 2]


def test_an_idle_engine_takes_one(joins, newcomer) -> None:
    assert joins([newcomer()], total=100, host=0) == [0]


def test_eight_are_served_while_the_costs_are_unknown(joins, decoding, newcomer) -> None:
    costs = StepCosts()
    rows = [*(decoding() for _ in range(6)), *(newcomer() for _ in range(5))]
    assert joins(rows, costs=costs) == [6, 7]
    assert joins([newcomer()], costs=costs) == [0]


def test_where_only_decoding_has_been_measured_more_are_served(joins, decoding, newcomer) -> None:
    """Short prompts that come one at a time never tell what a prefill costs."""
    rows = [*(decoding() for _ in range(20)), *(newcomer() for _ in range(5))]
    known = dataclasses.replace(COSTS, prefill=None)
    assert joins(rows, costs=known, total=AMPLE, free=AMPLE // 2) == [20, 21, 22, 23, 24]


# ---- both rules ---------------------------------------------------------------------


def test_both_rules_let_in_what_passes_each(joins, decoding, newcomer) -> None:
    # Readers of 100 tokens/s are more than the engine can give: the demand test says no, objectives
    # of 0.2 s per token do not.
    greedy = [decoding(), newcomer(100, rate=9.0, expected=2000.0)]
    crowded = {"total": 1000, "free": 0, "host": AMPLE}
    assert joins(greedy, "demand", **crowded) == []
    assert joins(greedy, "slo", **crowded) == [1]
    assert joins(greedy, "both", **crowded) == []
    # A stream at its objective's limit: no prefill is short enough, for readers it is.
    behind = [decoding(slack=50.0, first_text=59.99, expected=202.0), newcomer(5000, expected=5.0)]
    assert joins(behind, "demand") == [1]
    assert joins(behind, "slo") == []
    assert joins(behind, "both") == []
    easy = [decoding(), newcomer(1000)]
    assert [joins(easy, rule) for rule in ("demand", "slo", "both")] == [[1], [1], [1]]


def test_thoughts_are_held_by_the_demand_test_alone(make_state, make_stream, newcomer) -> None:
    thoughts = [make_stream(Phase.PAUSED, thinking=True, expected=5000.0) for _ in range(30)]
    state = make_state(thoughts, total=500, free=0, host=AMPLE, costs=COSTS)
    held = {
        rule: len(AdmissionRules(WorkingSetConfig(admission=rule)).join(state).held)
        for rule in ("demand", "slo", "both")
    }
    assert held["demand"] == held["both"] > 0
    assert held["slo"] == 0


@st.composite
def batches(draw):
    def number(low, high):
        return draw(st.floats(low, high))

    rows = []
    for _ in range(draw(st.integers(0, 6))):
        generated = draw(st.integers(1, 500))
        rows.append(
            {"generated": generated, "expected": generated + number(1.0, 900.0),
             "rate": number(0.5, 50.0), "slack": number(-5.0, 60.0),
             "tpot_slo": draw(st.sampled_from([math.nan, 0.05, 0.2])),
             "first_text": 100.0 - number(1.0, 60.0)}
        )  # fmt: skip
    waits = [draw(st.integers(1, 20_000)) for _ in range(draw(st.integers(1, 6)))]
    return rows, waits, draw(st.sampled_from([3000, 20_000, AMPLE]))


@settings(max_examples=60, deadline=None)
@given(batch=batches())
def test_both_is_what_the_two_have_in_common(make_state, make_stream, batch) -> None:
    started, prompts, total = batch
    rows = [make_stream(**row) for row in started]
    rows += [make_stream(Phase.WAITING, prompt=prompt, rate=5.0) for prompt in prompts]
    state = make_state(rows, total=total, costs=COSTS)
    found = {
        rule: AdmissionRules(WorkingSetConfig(admission=rule)).join(state).join.tolist()
        for rule in ("demand", "slo", "both")
    }
    assert found["both"] == [each for each in found["demand"] if each in found["slo"]]
    assert found["slo"] == list(range(len(started), len(started) + len(found["slo"])))
    if not started:
        assert found["both"]


def test_a_prefill_step_keeps_the_objective_between_two_tokens(make_state, make_stream) -> None:
    def limit(**given):
        return prefill_gate(
            make_state([make_stream(slack=5.0, **given)], costs=COSTS), CONFIG, NO_STREAMS
        ).limit

    assert limit() == 2048
    assert limit(tbt_slo=1.1) == 1100
    assert limit(tbt_slo=0.05) == 256
    assert within_objectives(make_state([make_stream()]), CONFIG).tolist() == []
