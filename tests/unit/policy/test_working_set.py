"""The policy as a whole: when it plans, and how it starts what it chose."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Cause, Mode, Phase, Preempt, Way
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.baselines import PaperPolicy
from tokenflow_sgl.policy.baselines.paper import PaperMemo
from tokenflow_sgl.policy.mixed_steps import FAIR_SHARE, LEAST_SHARE, UNNOTICED
from tokenflow_sgl.policy.prefill import prefill_gate
from tokenflow_sgl.policy.working_set import WorkingSetMemo

POLICY = WorkingSetPolicy()
JUST_PLANNED = WorkingSetMemo(planned=99.9)


def recomputed(decision) -> set[int]:
    return {each.slot for each in decision.restore if each.way is Way.RECOMPUTE}


def replanned(decision) -> bool:
    return decision.memo.planned == 100.0


# ---- when ---------------------------------------------------------------------------


def test_without_stress_the_engine_is_left_alone(make_state, make_stream) -> None:
    decision = POLICY.decide(make_state([make_stream()] * 3))
    assert decision.mode is Mode.IDLE
    assert (decision.admit, decision.preempt, decision.run) == ((), (), ())


@pytest.mark.parametrize(
    ("last", "paused_slack", "due"),
    [
        (99.9, 3.0, False),
        (99.75, 3.0, True),  # a cycle of 0.2 s is over
        (-np.inf, 3.0, True),
        (99.9, 0.1, True),  # runs dry within a cycle
        (99.9, 0.3, False),
        (99.9, -0.1, False),  # is dry: on the plan since before
    ],
)
def test_a_plan_is_due_by_time_or_predicted_underrun(
    make_state, make_stream, last, paused_slack, due
) -> None:
    rows = [make_stream(), make_stream(Phase.PAUSED, slack=paused_slack)]
    decision = POLICY.decide(make_state(rows, memo=WorkingSetMemo(planned=last)))
    assert decision.mode is Mode.WORKING_SET
    assert replanned(decision) is due


@pytest.mark.parametrize(("since", "due"), [(99.95, True), (99.9, True), (99.85, False)])
def test_a_plan_is_due_on_an_arrival_since_the_last(make_state, make_stream, since, due) -> None:
    rows = [make_stream(), make_stream(Phase.PAUSED), make_stream(Phase.WAITING, since=since)]
    assert replanned(POLICY.decide(make_state(rows, memo=JUST_PLANNED))) is due


def test_a_plan_is_due_when_nothing_runs(make_state, make_stream) -> None:
    state = make_state([make_stream(Phase.PAUSED)], memo=JUST_PLANNED)
    assert replanned(POLICY.decide(state))


# ---- what ---------------------------------------------------------------------------


def test_a_plan_admits_newcomers_and_starts_them(make_state, make_stream) -> None:
    rows = [make_stream(), make_stream(Phase.PAUSED, slack=3.0), make_stream(Phase.WAITING)]
    decision = POLICY.decide(make_state(rows))
    assert decision.admit == (12,)
    assert decision.run == (12, 11)
    assert decision.memo.plan == (12, 11)


def test_between_plans_only_open_slots_are_left_in_their_order(make_state, make_stream) -> None:
    rows = [
        make_stream(Phase.RUNNING),
        make_stream(Phase.PAUSED),
        make_stream(Phase.DRAINING),
        make_stream(Phase.WAITING, admitted=True, since=99.5),
        make_stream(Phase.PAUSED),
    ]
    # 99 is gone; 14 was not chosen.
    kept = dataclasses.replace(JUST_PLANNED, plan=(13, 99, 12, 11, 10), park_share=0.9)
    decision = POLICY.decide(make_state(rows, memo=kept))
    assert decision.run == (13, 11)
    assert decision.admit == decision.preempt == ()
    assert decision.memo == dataclasses.replace(kept, plan=(13, 11))


def test_streams_at_rest_are_not_resumed(make_state, make_stream) -> None:
    # All 20 s ahead at 0.8 of the rate: 8 of 20 rest in the end (see test_parking), one joins now.
    costs = StepCosts(decode=(0.01, 0.001, 0.0))
    rows = [make_stream(slack=20.0, generated=100 + i) for i in range(19)]
    rows.append(make_stream(Phase.PAUSED, slack=20.0, generated=1))
    kept = WorkingSetMemo(park_share=0.8)
    decision = POLICY.decide(make_state(rows, costs=costs, memo=kept))
    assert 29 not in decision.run
    assert {p.slot for p in decision.preempt} == {10}
    assert {p.cause for p in decision.preempt} == {Cause.PARK}


# ---- emergencies --------------------------------------------------------------------


def emergency(make_state, rows, **given):
    state = make_state(rows, memo=JUST_PLANNED, **{"free": 0, **given})
    return POLICY.decide(state).preempt


def test_an_emergency_takes_the_largest_slack_and_stops_when_enough(
    make_state, make_stream
) -> None:
    rows = [make_stream(slack=s) for s in (1.0, 3.0, 2.0)]
    # 200 tokens are more than 24 steps of the other two.
    assert emergency(make_state, rows) == (Preempt(11, Cause.MEMORY),)


def test_an_emergency_takes_several_if_they_are_short_but_never_the_last(
    make_state, make_stream
) -> None:
    rows = [make_stream(slack=s, prompt=5, generated=5) for s in (1.0, 3.0, 2.0)]
    # 10 < 2 * 24, then 20 < 1 * 24, and one must go on.
    assert [p.slot for p in emergency(make_state, rows)] == [11, 12]


@pytest.mark.parametrize(("free", "evicts"), [(12, False), (11, True)])
def test_an_emergency_is_four_decode_steps_that_do_not_fit(
    make_state, make_stream, free, evicts
) -> None:
    preempt = emergency(make_state, [make_stream()] * 3, free=free)
    assert bool(preempt) is evicts
    assert bool(emergency(make_state, [make_stream()] * 3, free=free + 50, promised=50)) is evicts


def test_an_emergency_spares_streams_that_cannot_be_preempted(make_state, make_stream) -> None:
    rows = [make_stream(slack=1.0), make_stream(slack=3.0, preemptible=False)]
    assert [p.slot for p in emergency(make_state, rows)] == [10]


def test_an_emergency_waits_for_what_drains(make_state, make_stream) -> None:
    rows = [make_stream(), make_stream(), make_stream(Phase.DRAINING)]
    assert emergency(make_state, rows) == ()


def test_a_single_stream_is_never_an_emergency(make_state, make_stream) -> None:
    assert emergency(make_state, [make_stream()]) == ()


def test_an_emergency_counts_what_the_plan_frees(make_state, make_stream) -> None:
    rows = [make_stream(slack=3.5)] * 3 + [make_stream(Phase.PAUSED, slack=0.0)]
    decision = POLICY.decide(make_state(rows, free=0))
    slots = [p.slot for p in decision.preempt]
    assert len(slots) == len(set(slots))
    assert {p.cause for p in decision.preempt} == {Cause.EXCHANGE}


# ---- how ----------------------------------------------------------------------------


def held(make_state, make_stream, policy=POLICY, slack=0.02, prompt=1000, **given) -> bool:
    """Is a planned prefill of 64.5 ms held back, 10 ms after one of 100 ms?"""
    given = {"last_prefill_end": 99.99, "last_prefill_seconds": 0.1, **given}
    rows = [make_stream(slack=slack), make_stream(Phase.WAITING, prompt=prompt, since=99.0)]
    return policy.decide(make_state(rows, **given)).prefill.hold


def test_prefill_waits_for_a_reader_that_would_stall(make_state, make_stream) -> None:
    assert held(make_state, make_stream, slack=0.06)
    assert not held(make_state, make_stream, slack=0.07)


# At 10 tokens/s a mixed step may take 100 ms, or 110 while many wait, and 50 more go unnoticed. One
# of 256 tokens takes 4 + 256 * 0.06 = 19 ms here; with 0.7 ms per token it takes 183 ms. A reader
# needs text for one beside a decode step.
@pytest.mark.parametrize(
    ("per_token", "slack", "hold", "mixed"),
    [(6e-5, 0.02, 1, 0), (7e-4, 0.09, 1, 1), (7e-4, 0.3, 1, 0), (7e-4, 5.0, 0, 0)],
)
def test_mixed_steps_wait_too_where_none_is_short_enough(
    make_state, make_stream, per_token, slack, hold, mixed
) -> None:
    costs = StepCosts(decode=(0.008, 2e-5, 2e-8), prefill=(0.004, per_token, 0.0))
    rows = [make_stream(slack=slack), make_stream(Phase.WAITING, prompt=1000, since=99.0)]
    given = {"last_prefill_end": 99.99, "last_prefill_seconds": 0.1, "costs": costs}
    gate = POLICY.decide(make_state(rows, **given)).prefill
    assert (gate.hold, gate.hold_mixed) == (bool(hold), bool(mixed))


def test_mixed_steps_get_their_share_of_the_time_too(make_state, make_stream) -> None:
    costs = StepCosts(decode=(0.008, 2e-5, 2e-8), prefill=(0.004, 4e-4, 0.0))
    rows = [make_stream(slack=-2.0), make_stream(Phase.WAITING, prompt=1000, since=99.0)]
    given = {"last_prefill_end": 99.85, "last_prefill_seconds": 0.1, "costs": costs}
    assert not POLICY.decide(make_state(rows, **given)).prefill.hold_mixed


def test_prefill_gets_its_share_of_the_time_whichever_reader_stalls(
    make_state, make_stream
) -> None:
    assert not held(make_state, make_stream, last_prefill_end=99.85)
    assert not held(make_state, make_stream, last_prefill_end=-np.inf, last_prefill_seconds=0.0)
    unguarded = WorkingSetPolicy(WorkingSetConfig(prefill_guard=0.0))
    assert not held(make_state, make_stream, unguarded)


def test_prefill_is_not_held_while_its_cost_is_unknown(make_state, make_stream) -> None:
    assert not held(make_state, make_stream, costs=StepCosts())


def test_prefill_is_not_held_when_no_stream_decodes(make_state, make_stream) -> None:
    rows = [make_stream(Phase.PAUSED, slack=0.0), make_stream(Phase.WAITING)]
    decision = POLICY.decide(make_state(rows, last_prefill_end=99.99, last_prefill_seconds=0.1))
    assert not decision.prefill.hold
    assert decision.prefill.limit is None


@pytest.mark.parametrize("slack", [-5.0, 0.0, 0.05, 0.5, 1000.0])
def test_prefill_steps_are_short_while_a_stream_decodes(make_state, make_stream, slack) -> None:
    rows = [make_stream(slack=slack), make_stream(Phase.WAITING)]
    for chunk in (16, 2048):
        policy = WorkingSetPolicy(WorkingSetConfig(prefill_chunk=chunk))
        limit = policy.decide(make_state(rows)).prefill.limit
        assert limit is not None
        assert 0 < limit <= chunk


@pytest.mark.parametrize(
    ("slack", "rate", "limit"),
    [
        (-5.0, 20.0, 766),  # (50 - 4) / 0.06
        (0.01, 20.0, 766),
        (0.1, 20.0, 1600),  # (100 - 4) / 0.06
        (-5.0, 200.0, 256),  # the least; twice 4 ms are 133 tokens
        (9.0, 20.0, 2048),
    ],
)
def test_a_prefill_step_is_as_long_as_readers_bear(
    make_state, make_stream, slack, rate, limit
) -> None:
    # 4 ms, and 60 us a token.
    rows = [make_stream(slack=slack, rate=rate), make_stream(slack=50.0, rate=1.0)]
    rows.append(make_stream(Phase.WAITING))
    found = POLICY.decide(make_state(rows, total=450)).prefill.limit
    assert found == pytest.approx(limit, abs=1)


def test_a_prefill_step_leaves_time_for_streams_that_decode_in_it(make_state, make_stream) -> None:
    # 4 ms, 60 us a token, 10 ns for each token before it; a decoding row takes 1 ms.
    costs = StepCosts(decode=(0.01, 1e-3, 0.0), prefill=(0.004, 6e-5, 1e-8))
    rows = [make_stream(slack=-5.0, rate=20.0) for _ in range(6)]
    waiting = make_stream(Phase.WAITING)
    found = POLICY.decide(make_state([*rows, waiting], total=1300, costs=costs)).prefill.limit
    assert found == pytest.approx((0.050 - 0.006 - 0.004) / 6e-5, abs=1)
    # In the midst of a prompt of 5000 tokens, 1000 to go.
    chunked = make_stream(slack=9.0, prompt=5000, generated=0, preemptible=False)
    state = make_state([*rows, chunked, waiting], total=6300, promised=1000, costs=costs)
    found = POLICY.decide(state).prefill.limit
    assert found == pytest.approx((0.050 - 0.007 - 0.004) / (6e-5 + 4000 * 1e-8), abs=1)


def test_a_chunk_attends_to_what_is_cached_before_it(make_state, make_stream) -> None:
    costs = StepCosts(decode=(0.01, 0.0, 0.0), prefill=(0.004, 6e-5, 1e-8))
    rows = [make_stream(slack=0.05, rate=20.0)]
    rows.append(make_stream(Phase.WAITING, prompt=5000, on_device=4000, on_host=4000))
    # A token is read in 50 ms.
    found = POLICY.decide(make_state(rows, total=50_000, costs=costs)).prefill.limit
    assert found == pytest.approx((0.050 - 0.004) / (6e-5 + 4000 * 1e-8), abs=1)


def test_beside_steps_as_long_as_readers_bear_prompts_get_half_as_long(
    make_state, make_stream
) -> None:
    # A step of 120 ms, where readers read a token in 50: 256 tokens would take 15 ms.
    costs = StepCosts(decode=(0.0, 0.12, 0.0), prefill=(0.004, 6e-5, 0.0))
    rows = [make_stream(slack=-5.0, rate=20.0), make_stream(Phase.WAITING)]
    found = POLICY.decide(make_state(rows, total=450, costs=costs)).prefill.limit
    assert found == pytest.approx(LEAST_SHARE * 0.124 / 6e-5, abs=1)
    # Not where a reader has an objective, which would be missed by it.
    rows[0] = make_stream(slack=-5.0, rate=20.0, tbt_slo=0.05)
    found = POLICY.decide(make_state(rows, total=450, costs=costs)).prefill.limit
    assert found == 256


@pytest.mark.parametrize(
    ("constant", "seconds"),
    [
        (0.004, 0.046),  # as long as a token is read; more than twice 4 ms
        (0.024, FAIR_SHARE * 0.024),  # 26 ms would keep pace; late by 22, which goes unnoticed
        (0.050, UNNOTICED),  # twice 50 ms would be noticed
        (0.090, LEAST_SHARE * 0.090),
    ],
)
def test_a_fair_share_may_be_late_by_what_goes_unnoticed(
    make_state, make_stream, constant, seconds
) -> None:
    # A token is read in 50 ms.
    costs = StepCosts(decode=(0.008, 0.0, 0.0), prefill=(constant, 6e-5, 0.0))
    rows = [make_stream(slack=-5.0, rate=20.0), make_stream(slack=50.0, rate=1.0)]
    rows.append(make_stream(Phase.WAITING))
    found = POLICY.decide(make_state(rows, total=450, costs=costs)).prefill.limit
    assert found == pytest.approx(seconds / 6e-5, abs=1)


@pytest.mark.parametrize(
    ("came", "prompt", "seconds"),
    [
        (99.9, 4000, FAIR_SHARE * 0.010),  # 0.25 s of work in 1.4 s: less than two thirds
        (99.9, 19_000, 1.15 / (1.4 - 1.15) * 0.010),  # 1.15 s of work in 1.4 s
        (99.0, 8000, 0.041 + UNNOTICED),  # 0.49 s of work in 0.5 s: as long as goes unnoticed
        (98.0, 4000, FAIR_SHARE * 0.010),  # it is late
    ],
)
def test_steps_are_as_long_as_newcomers_need_to_be_in_time(
    make_state, make_stream, came, prompt, seconds
) -> None:
    # A token is read in 51 ms; the rows take none.
    costs = StepCosts(decode=(0.008, 0.0, 0.0), prefill=(0.010, 6e-5, 0.0))
    rows = [make_stream(slack=-5.0, rate=1 / 0.051), make_stream(slack=50.0, rate=1.0)]
    rows.append(make_stream(Phase.WAITING, prompt=prompt, generated=0, arrival=came))
    made = make_state(rows, total=50_000, costs=costs, chunk=8192)
    found = prefill_gate(made, WorkingSetConfig(prefill_chunk=8192), np.array([2])).limit
    assert found == pytest.approx(max(seconds, 0.041) / 6e-5, abs=60)


# The paused streams hold 200 tokens each, a load of them takes 0.2 s.
@pytest.mark.parametrize(
    ("per_token", "dearer"),
    [
        (0.2e-3, {11, 12, 13}),  # 0.04 s: but the first load keeps its cost known
        (0.9e-3, {11, 12}),  # 0.18 s: two queue for 0.36 s, where the load would be there at 0.4
        (1.1e-3, set()),  # 0.22 s: there sooner than the fourth load, but all streams wait
    ],
)
def test_recomputed_is_what_is_cheaper_than_its_load_and_there_sooner(
    make_state, make_stream, per_token, dearer
) -> None:
    costs = StepCosts(prefill=(0.0, per_token, 0.0), load=(0.0, 1e-3))
    rows = [make_stream(Phase.PAUSED, slack=slack) for slack in (1.0, 2.0, 3.0, 4.0)]
    decision = POLICY.decide(make_state(rows, costs=costs))
    assert decision.run == (10, 11, 12, 13)
    assert recomputed(decision) == dearer


@pytest.mark.parametrize(
    "costs",
    [StepCosts(), StepCosts(prefill=(0.0, 0.0, 0.0)), StepCosts(load=(0.0, 1e-3))],
)
def test_nothing_is_recomputed_while_a_cost_is_unknown(make_state, make_stream, costs) -> None:
    assert not recomputed(POLICY.decide(make_state([make_stream(Phase.PAUSED)], costs=costs)))


def test_newcomers_are_never_recomputed(make_state, make_stream) -> None:
    costs = StepCosts(prefill=(0.0, 1e-9, 0.0), load=(0.0, 1e-3))
    rows = [make_stream(Phase.WAITING), make_stream(Phase.PAUSED), make_stream(Phase.PAUSED)]
    assert recomputed(POLICY.decide(make_state(rows, costs=costs))) == {12}


def test_between_plans_the_loads_queue_in_the_order_of_the_plan(make_state, make_stream) -> None:
    costs = StepCosts(prefill=(0.0, 0.9e-3, 0.0), load=(0.0, 1e-3))
    rows = [make_stream(Phase.PAUSED, slack=2.0), make_stream(Phase.PAUSED, slack=1.0)]
    rows.append(make_stream())
    kept = dataclasses.replace(JUST_PLANNED, plan=(11, 10))
    decision = POLICY.decide(make_state(rows, costs=costs, memo=kept))
    assert decision.run == (11, 10)
    assert recomputed(decision) == {10}


# ---- always -------------------------------------------------------------------------


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "phase": st.sampled_from(list(Phase)),
            "slack": st.floats(-5.0, 60.0),
            "prompt": st.integers(1, 900),
            "generated": st.integers(0, 900),
            "expected": st.sampled_from([1000.0, 4000.0]),
            "rate": st.sampled_from([5.0, 10.0, 50.0]),
            "since": st.floats(98.0, 100.0),
            "preemptible": st.booleans(),
            "admitted": st.booleans(),
        }
    ),
    min_size=1,
    max_size=20,
)


@pytest.mark.parametrize("policy", [POLICY, PaperPolicy()], ids=["working-set", "paper"])
@settings(max_examples=50, deadline=None)
@given(rows=ROWS, data=st.data())
def test_decide_is_pure_and_its_answer_is_well_formed(
    make_state, make_stream, policy, rows, data
) -> None:
    slots = [10 + i for i in range(len(rows))]
    plan = tuple(data.draw(st.permutations(slots)))[: data.draw(st.integers(0, 5))]
    last = data.draw(st.sampled_from([-np.inf, 99.0, 99.9]))
    state = make_state(
        [make_stream(**row) for row in rows],
        free=data.draw(st.integers(0, 3000)),
        promised=data.draw(st.integers(0, 500)),
        rows_limit=data.draw(st.integers(len(rows) + 1, 64)),
        throughput=data.draw(st.sampled_from([np.nan, 10.0, 1e6])),
        memo=data.draw(
            st.sampled_from([WorkingSetMemo(last, plan, 0.8), PaperMemo(last, plan, True), None])
        ),
        last_prefill_end=99.99,
        last_prefill_seconds=data.draw(st.sampled_from([0.0, 0.1])),
    )
    before = copy.deepcopy(state)
    first, second = policy.decide(state), policy.decide(state)
    assert first == second
    for item in dataclasses.fields(state.streams):
        array = getattr(state.streams, item.name)
        if isinstance(array, np.ndarray):
            assert array.tobytes() == getattr(before.streams, item.name).tobytes()
    assert state.memo == before.memo

    victims = [p.slot for p in first.preempt]
    assert len(set(victims)) == len(victims)
    for slot in victims:
        assert rows[slot - 10]["phase"] == Phase.RUNNING
        assert rows[slot - 10]["preemptible"]
    assert set(recomputed(first)) <= set(first.run)
    for slot in first.admit:
        assert rows[slot - 10]["phase"] == Phase.WAITING
        assert not rows[slot - 10]["admitted"]
    # Plain numbers, which travel and compare everywhere.
    for slot in (*first.admit, *first.run, *victims, *recomputed(first)):
        assert type(slot) is int
