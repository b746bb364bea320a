"""Tolerance and weight: what they change, and what they leave as it was."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Phase, State
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.admission import DemandAnswer, admissible
from tokenflow_sgl.policy.exchange import exchange
from tokenflow_sgl.policy.prefill import prefill_gate
from tokenflow_sgl.policy.queueing import Queue, first_of, queue_keys, waiting_queue
from tokenflow_sgl.policy.urgency import leeway, turn

CONFIG = WorkingSetConfig()
NO_STREAMS = np.zeros(0, dtype=np.int64)
AGENT = {"rate": 50.0, "tolerance": 30.0}
NONE = DemandAnswer(np.zeros(0, dtype=np.int64))


def without_classes(state: State) -> State:
    """The same streams in a body that knows no classes."""
    return dataclasses.replace(
        state, streams=dataclasses.replace(state.streams, weight=None, tolerance=None)
    )


@pytest.fixture
def plan(make_state):
    """(indices to run, indices to preempt) where one victim makes room for one of its size."""

    def ask(rows, **given):
        running = sum(row["phase"] == Phase.RUNNING for row in rows)
        given.setdefault("free", DECODE_TARGET_STEPS * (running + 1))
        state = make_state(rows, **given)
        outcome = exchange(state, CONFIG, NONE)
        return list(outcome.run), [p.slot - 10 for p in outcome.preempt]

    return ask


def newcomers(state: State) -> list[int]:
    """The waiting streams in the order of their prefills."""
    keys = queue_keys(state, waiting_queue(state, Queue(), CONFIG), CONFIG)
    return first_of(state.streams.waiting_index, keys, None).tolist()


# ---- the rules ----------------------------------------------------------------------


def test_a_wait_counts_by_weight_and_a_reserve_against_it() -> None:
    seconds, weight = np.array([-4.0, -4.0, 6.0, 6.0, 0.0]), np.array([1.0, 2.0, 1.0, 2.0, 2.0])
    assert turn(seconds, weight).tolist() == [-4.0, -8.0, 6.0, 3.0, 0.0]


@given(
    seconds=st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=2),
    weight=st.floats(0.1, 10.0),
    other=st.floats(0.1, 10.0),
)
def test_a_turn_never_starves_and_equal_weights_say_nothing(seconds, weight, other) -> None:
    one, two = turn(np.array(seconds), np.full(2, weight))
    assert (one < two) == (seconds[0] < seconds[1]) or abs(seconds[0] - seconds[1]) < 1e-9
    # A stream has its turn before another that has waited for less than its share.
    waits = np.array([-50.0, -50.0 * weight / other * 0.999])
    late, later = turn(waits, np.array([weight, other]))
    assert late < later


def test_leeway_is_slack_and_tolerance(make_state, make_stream) -> None:
    rows = [make_stream(slack=-2.0, **AGENT), make_stream(slack=-2.0)]
    state = make_state(rows)
    assert leeway(state).tolist() == [28.0, -2.0]
    assert state.slack.tolist() == [-2.0, -2.0], "tolerance does not falsify slack"
    assert leeway(without_classes(state)).tolist() == [-2.0, -2.0]


# ---- what resumes, what is paused -----------------------------------------------------


def test_the_heavier_of_two_that_stall_alike_resumes(plan, make_stream) -> None:
    light = make_stream(Phase.PAUSED, slack=-3.0)
    heavy = make_stream(Phase.PAUSED, slack=-2.0, weight=2.0)
    assert plan([light, heavy], free=9_000)[0] == [1, 0]
    assert plan([light, dict(heavy, weight=1.0)], free=9_000)[0] == [0, 1]
    assert plan([light, dict(heavy, slack=-1.4)], free=9_000)[0] == [0, 1]


def test_readers_resume_before_agents_whose_wait_is_tolerated(plan, make_stream) -> None:
    reader = make_stream(Phase.PAUSED, slack=10.0)
    agent = make_stream(Phase.PAUSED, slack=-15.0, **AGENT)
    assert plan([agent, reader], free=9_000)[0] == [1, 0]
    # Later it has its turn before that reader, as any other would.
    assert plan([dict(agent, slack=-21.0), reader], free=9_000)[0] == [0, 1]


def test_an_agent_makes_room_for_a_reader_that_stalls(plan, make_stream) -> None:
    stalls = make_stream(Phase.PAUSED, slack=-1.0)
    agent, reader = make_stream(slack=0.1, **AGENT), make_stream(slack=0.1)
    assert plan([stalls, reader, agent]) == ([0], [2])
    assert plan([stalls, reader, dict(agent, tolerance=0.0)]) == ([], [])


def test_an_agent_within_its_tolerance_displaces_no_other(plan, make_stream) -> None:
    reader = make_stream(slack=7.0)
    agent = make_stream(Phase.PAUSED, slack=-20.0, **AGENT)
    assert plan([agent, reader]) == ([], [])
    assert plan([dict(agent, slack=-31.0), reader]) == ([0], [1])
    waits = make_stream(Phase.WAITING, admitted=True, prompt=200, **AGENT)
    assert plan([waits, reader]) == ([], [])
    assert plan([dict(waits, arrival=60.0), reader]) == ([0], [1])


def test_a_margin_is_relative_to_the_weights(plan, make_stream) -> None:
    # A band of 40 s, of which nothing is saturated: only hysteresis decides.
    stalls = make_stream(Phase.PAUSED, slack=-1.0)
    runs = make_stream(slack=8.0, expected=4000.0)
    assert plan([stalls, runs]) == ([0], [1])
    assert plan([stalls, dict(runs, weight=2.0)]) == ([], [])
    assert plan([stalls, dict(runs, weight=2.0, slack=13.0)]) == ([0], [1])
    assert plan([dict(stalls, weight=2.0), dict(runs, slack=4.0)]) == ([0], [1])


def test_where_memory_for_the_next_steps_is_missing_agents_go_first(make_state, make_stream):
    rows = [make_stream(slack=20.0), make_stream(slack=0.0, **AGENT), make_stream(slack=5.0)]
    decision = WorkingSetPolicy().decide(make_state(rows, free=0, total=620))
    assert decision.preempt[0].slot - 10 == 1


# ---- what begins ---------------------------------------------------------------------


def test_the_response_ratio_counts_by_weight(make_state, make_stream) -> None:
    rows = [
        make_stream(Phase.WAITING, prompt=400, arrival=97.0),
        make_stream(Phase.WAITING, prompt=400, arrival=98.0, weight=2.0),
    ]
    assert newcomers(make_state(rows)) == [1, 0]
    assert newcomers(without_classes(make_state(rows))) == [0, 1]


def test_a_tolerated_wait_comes_behind_all_others_and_ends(make_state, make_stream) -> None:
    agent = make_stream(Phase.WAITING, prompt=10, arrival=80.0, **AGENT)
    reader = make_stream(Phase.WAITING, prompt=4000, arrival=97.0)
    assert newcomers(make_state([agent, reader])) == [1, 0]
    assert newcomers(make_state([dict(agent, arrival=69.0), reader])) == [0, 1]


def test_tolerated_waits_are_in_order_of_response_among_themselves(make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, prompt=p, arrival=90.0, **AGENT) for p in (4000, 100, 900)]
    assert newcomers(make_state(rows)) == [1, 2, 0]


def test_admission_asks_for_what_is_tolerated_later(make_state, make_stream) -> None:
    # Members that together ask for more than the engine can do within ten seconds.
    members = [make_stream(slack=0.0, rate=90.0, expected=1500.0) for _ in range(30)]
    rows = [*members, make_stream(Phase.WAITING)]
    strict = admissible(make_state(rows, total=20_000, host=40_000), CONFIG).join
    patient = [dict(row, tolerance=60.0) for row in members]
    assert len(strict) == 0
    later = make_state([*patient, rows[-1]], total=20_000, host=40_000)
    assert admissible(later, CONFIG).join.tolist() == [30]


def test_a_prefill_step_may_last_as_long_as_is_tolerated(make_state, make_stream) -> None:
    rows = [make_stream(slack=0.02), make_stream(Phase.WAITING, prompt=9000)]
    short = prefill_gate(make_state(rows), CONFIG, NO_STREAMS).limit
    rows[0]["tolerance"] = 1.0
    assert prefill_gate(make_state(rows), CONFIG, NO_STREAMS).limit == CONFIG.prefill_chunk > short


# ---- what stays as it was ------------------------------------------------------------

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "phase": st.sampled_from([Phase.WAITING, Phase.RUNNING, Phase.PAUSED]),
            "slack": st.floats(-20.0, 60.0),
            "arrival": st.floats(60.0, 100.0),
            "prompt": st.integers(1, 900),
            "generated": st.integers(1, 900),
            "rate": st.sampled_from([5.0, 10.0, 50.0]),
            "since": st.floats(90.0, 100.0),
            "admitted": st.booleans(),
        }
    ),
    min_size=1,
    max_size=12,
)


def made(make_stream, rows, **of_all):
    """Streams of these; one that waits has neither text nor slack."""
    fresh = {"generated": 0, "slack": None}
    return [
        make_stream(**{**row, **(fresh if row["phase"] is Phase.WAITING else {}), **of_all})
        for row in rows
    ]


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, weight=st.sampled_from([0.25, 1.0, 4.0]), free=st.integers(0, 3000))
def test_classes_of_equal_weight_decide_as_none(
    make_state, make_stream, rows, weight, free
) -> None:
    state = make_state(made(make_stream, rows, weight=weight), free=free)
    policy = WorkingSetPolicy()
    assert policy.decide(state) == policy.decide(without_classes(state))


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, number=st.integers(0, 11), free=st.integers(0, 3000))
def test_a_heavier_stream_never_waits_longer_in_the_same_place(
    make_state, make_stream, rows, number, free
) -> None:
    """Of twins, one of twice the weight: if the light one runs, so does the heavy one."""
    number %= len(rows)
    streams = made(make_stream, rows)
    twin = dict(streams[number], weight=2.0)
    state = make_state([*streams, twin], free=free)
    keys = queue_keys(state, waiting_queue(state, Queue(), CONFIG), CONFIG)
    outcome = exchange(state, CONFIG, NONE, keys)
    light, heavy = number, len(streams)
    ties = state.slack[light] == 0.0
    assert ties or light not in outcome.run or heavy in outcome.run
    if not ties and light in outcome.run:
        assert outcome.run.index(heavy) < outcome.run.index(light)


@settings(max_examples=30, deadline=None)
@given(readers=st.integers(1, 10), weight=st.sampled_from([1.0, 4.0, 10.0]))
def test_an_agent_is_not_starved_by_readers_that_keep_coming(
    make_state, make_stream, readers, weight
) -> None:
    """However many readers stall at any time, an agent has its turn after a bounded wait."""
    stalled = [make_stream(Phase.PAUSED, slack=-2.0, weight=weight) for _ in range(readers)]
    bound = 30.0 + 2.0 * weight
    agent = make_stream(Phase.PAUSED, slack=-bound - 0.1, **AGENT)
    order = exchange(make_state([*stalled, agent], free=9_000), CONFIG, NONE).run
    assert order[0] == readers
