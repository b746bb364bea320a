"""The exchange: which stream comes in, and which makes room."""

from __future__ import annotations

import numpy as np
import pytest
from exchanging import CONFIG, LONG, joined
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Cause, Phase, Preempt
from tokenflow_sgl.policy.candidates import CONSIDERED, STOCKED, _most_urgent
from tokenflow_sgl.policy.exchange import exchange, useful_band


def test_the_band_is_a_share_of_the_output_but_some_seconds_at_least(make_state, make_stream):
    rows = [make_stream(), make_stream(expected=LONG), make_stream(rate=50.0)]
    made = make_state(rows)
    assert useful_band(made, CONFIG, np.arange(3)).tolist() == [4.0, 40.0, 3.0]
    assert useful_band(made, CONFIG, np.array([2, 0])).tolist() == [3.0, 4.0]


def test_the_least_slack_goes_first(plan, make_stream) -> None:
    rows = [make_stream(Phase.PAUSED, slack=s) for s in (3.0, -1.0, 2.0)]
    assert plan(rows, free=9_000) == ([11, 12, 10], [])


def test_stalled_streams_go_before_newcomers_and_others_after_them(plan, make_stream) -> None:
    rows = [
        make_stream(Phase.WAITING, admitted=True),  # it came a second ago
        make_stream(Phase.PAUSED, slack=1.0),
        make_stream(Phase.PAUSED, slack=-0.5),
        make_stream(Phase.WAITING, admitted=True),
    ]
    assert plan(rows, free=9_000) == ([12, 10, 13, 11], [])


def test_only_paused_and_admitted_streams_are_candidates(make_state, make_stream) -> None:
    rows = [
        make_stream(Phase.WAITING),
        make_stream(Phase.WAITING, admitted=True),
        make_stream(Phase.WAITING),
        make_stream(Phase.RUNNING),
        make_stream(Phase.DRAINING),
    ]
    assert exchange(make_state(rows), CONFIG, joined()).run == (1,)
    assert exchange(make_state(rows), CONFIG, joined(2)).run == (1, 2)


def test_room_is_used_before_anybody_is_displaced(plan, make_stream) -> None:
    rows = [make_stream(slack=3.5), make_stream(Phase.PAUSED, slack=0.0)]
    # 24 for the running one, 200 + 24 for the incomer.
    assert plan(rows, free=248) == ([11], [])
    assert plan(rows, free=247) == ([11], [10])


def test_what_drains_is_as_good_as_free(plan, make_stream) -> None:
    rows = [
        make_stream(slack=3.5),
        make_stream(Phase.DRAINING),
        make_stream(Phase.PAUSED, slack=0.0),
    ]
    assert plan(rows) == ([12], [])


def test_promised_tokens_are_not_room(plan, make_stream) -> None:
    rows = [make_stream(slack=3.5), make_stream(Phase.PAUSED, slack=0.0)]
    assert plan(rows, free=348, promised=100) == ([11], [])
    assert plan(rows, free=347, promised=100) == ([11], [10])


def test_saturated_streams_give_way_before_others_with_more_slack(plan, make_stream) -> None:
    rows = [
        make_stream(slack=20.0, expected=LONG),  # not saturated, but bears an exchange
        make_stream(slack=3.2),
        make_stream(slack=3.5),
        make_stream(Phase.PAUSED, slack=0.0),
    ]
    assert plan(rows) == ([13], [12])
    assert plan([rows[0], rows[3]]) == ([11], [10])


def test_of_saturated_streams_the_one_that_has_most_left_gives_way(plan, make_stream) -> None:
    rows = [
        make_stream(slack=3.5, generated=110, prompt=90),
        make_stream(slack=3.2, generated=90, prompt=110),
        make_stream(Phase.PAUSED, slack=0.0),
    ]
    assert plan(rows) == ([12], [11])


def test_of_those_far_ahead_the_one_that_has_come_farthest_resumes_first(plan, make_stream) -> None:
    ahead = [
        make_stream(Phase.PAUSED, slack=slack, generated=generated, prompt=200 - generated)
        for slack, generated in ((STOCKED + 20.0, 110), (STOCKED + 0.1, 90), (STOCKED - 0.1, 10))
    ]
    assert plan(ahead, free=9_000) == ([12, 10, 11], [])


@pytest.mark.parametrize(("slack", "urgent"), [(3.9, True), (4.1, False)])
def test_sprinters_give_way_only_to_the_urgent(plan, make_stream, slack, urgent) -> None:
    rows = [make_stream(slack=30.0), make_stream(Phase.PAUSED, slack=slack, expected=LONG)]
    assert plan(rows) == (([11], [10]) if urgent else ([], []))


def test_the_least_progressed_sprinter_gives_way_first(plan, make_stream) -> None:
    rows = [
        make_stream(slack=50.0, generated=150),
        make_stream(slack=30.0, generated=100),
        make_stream(slack=40.0, generated=130),
        make_stream(Phase.PAUSED, slack=0.0),
    ]
    assert plan(rows) == ([13], [11])


@pytest.mark.parametrize(
    ("runs", "paused", "exchanged"),
    [
        (10.0, 3.9, True),  # six seconds more
        (9.8, 3.9, False),
        (6.1, -5.0, True),  # a dry reader counts as one at zero
        (5.9, -5.0, False),
    ],
)
def test_an_exchange_needs_clearly_more_slack(plan, make_stream, runs, paused, exchanged) -> None:
    rows = [
        make_stream(slack=runs, expected=LONG),
        make_stream(Phase.PAUSED, slack=paused, expected=LONG),
    ]
    assert plan(rows) == (([11], [10]) if exchanged else ([], []))


# Out and in again: 2 * (1 ms + 200 * 3 us) = 3.2 ms, twice that is the condition of 4.2.1.
@pytest.mark.parametrize(("slack", "gives_way"), [(3.0065, True), (3.0063, False)])
def test_a_newcomer_displaces_a_stream_that_can_bear_the_switch(
    make_state, make_stream, slack, gives_way
) -> None:
    rows = [
        make_stream(slack=slack, expected=LONG),
        make_stream(Phase.WAITING, admitted=True, prompt=200),
    ]
    outcome = exchange(make_state(rows, free=48), CONFIG, joined())
    wanted = (Preempt(10, Cause.NEWCOMER),) if gives_way else ()
    assert outcome.preempt == wanted
    assert outcome.run == ((1,) if gives_way else ())


def test_an_exchange_says_so(make_state, make_stream) -> None:
    rows = [make_stream(slack=3.5), make_stream(Phase.PAUSED, slack=0.0)]
    outcome = exchange(make_state(rows, free=48), CONFIG, joined())
    assert outcome.preempt == (Preempt(10, Cause.EXCHANGE),)


@pytest.mark.parametrize(("ran", "gives_way"), [(0.4, False), (0.6, True)])
def test_no_stream_is_displaced_before_min_run(plan, make_stream, ran, gives_way) -> None:
    rows = [make_stream(slack=3.5, since=100.0 - ran), make_stream(Phase.PAUSED, slack=0.0)]
    assert plan(rows) == (([11], [10]) if gives_way else ([], []))


@pytest.mark.parametrize("given", [{"preemptible": False}, {"generated": 0, "prompt": 200}])
def test_a_stream_that_cannot_be_preempted_stays(plan, make_stream, given) -> None:
    rows = [make_stream(slack=3.5, **given), make_stream(Phase.PAUSED, slack=0.0)]
    assert plan(rows) == ([], [])


def test_no_stream_is_displaced_unless_the_incomer_then_fits(plan, make_stream) -> None:
    rows = [make_stream(slack=3.5)] * 3 + [make_stream(Phase.PAUSED, slack=0.0, prompt=700)]
    # 800 tokens and the reserve, and the three give 600.
    assert plan(rows) == ([], [])
    assert plan([rows[0], *rows]) == ([14], [10, 11, 12, 13][::-1])


def test_a_smaller_one_behind_may_still_fit(plan, make_stream) -> None:
    rows = [
        make_stream(slack=3.5),
        make_stream(Phase.PAUSED, slack=-1.0, prompt=700),
        make_stream(Phase.PAUSED, slack=0.0),
    ]
    assert plan(rows) == ([12], [10])


def test_a_paused_stream_with_half_a_band_displaces_no_other(plan, make_stream) -> None:
    rows = [make_stream(slack=3.5), make_stream(Phase.PAUSED, slack=2.1)]
    assert plan(rows) == ([], [])
    rows = [make_stream(slack=3.5), make_stream(Phase.PAUSED, slack=1.9)]
    assert plan(rows) == ([11], [10])


def test_rows_are_a_limit_like_memory(plan, make_stream) -> None:
    paused = [make_stream(Phase.PAUSED, slack=s) for s in (0.0, 1.0, 1.5)]
    starved = make_stream(slack=0.0)
    assert plan([starved, *paused], free=9_000, rows_limit=3) == ([11, 12], [])
    # A saturated stream gives its row away.
    assert plan([make_stream(slack=3.5), *paused], free=9_000, rows_limit=1) == ([11], [10])
    assert plan([starved, *paused], free=9_000, rows_limit=1) == ([], [])


def test_a_draining_row_is_as_good_as_free(plan, make_stream) -> None:
    rows = [make_stream(Phase.DRAINING), make_stream(Phase.PAUSED, slack=0.0)]
    assert plan(rows, free=9_000, rows_limit=1) == ([11], [])


def test_when_nothing_runs_the_most_urgent_goes_alone(plan, make_stream) -> None:
    rows = [make_stream(Phase.PAUSED, slack=s, prompt=900) for s in (3.0, 1.0, 2.0)]
    assert plan(rows, free=10) == ([11], [])
    # While a stream runs, its end is waited for.
    assert plan([*rows, make_stream(slack=0.0)], free=10) == ([], [])


def test_no_stream_gives_way_to_one_with_more_slack(plan, make_stream) -> None:
    rows = [make_stream(slack=3.3), make_stream(Phase.PAUSED, slack=19.0, expected=LONG)]
    assert plan(rows) == ([], [])


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "phase": st.sampled_from(list(Phase)),
            "slack": st.floats(-5.0, 60.0),
            "prompt": st.integers(1, 900),
            "generated": st.integers(1, 900),
            "expected": st.sampled_from([1000.0, 4000.0]),
            "rate": st.sampled_from([5.0, 10.0, 50.0]),
            "since": st.floats(98.0, 100.0),
            "preemptible": st.booleans(),
            "admitted": st.booleans(),
        }
    ),
    max_size=14,
)


@settings(max_examples=120, deadline=None)
@given(
    rows=ROWS,
    free=st.integers(0, 3000),
    promised=st.integers(0, 500),
    page=st.sampled_from([1, 16]),
    spare_rows=st.integers(0, 4),
)
def test_plans_fit_and_take_only_from_the_preemptible(
    make_state, make_stream, rows, free, promised, page, spare_rows
) -> None:
    rows = [make_stream(**row) for row in rows]
    phases = [row["phase"] for row in rows]
    running = phases.count(Phase.RUNNING)
    state = make_state(
        rows,
        free=free,
        promised=promised,
        page=page,
        rows_limit=running + phases.count(Phase.DRAINING) + spare_rows + 1,
    )
    outcome = exchange(state, CONFIG, joined())
    victims = [p.slot - 10 for p in outcome.preempt]
    size = [row["prompt"] + row["generated"] for row in rows]

    assert len(set(victims)) == len(victims)
    assert len(set(outcome.run)) == len(outcome.run)
    for i in victims:
        assert phases[i] == Phase.RUNNING
        assert rows[i]["preemptible"]
        assert 100.0 - rows[i]["since"] >= CONFIG.min_run
    for i in outcome.run:
        assert phases[i] == Phase.PAUSED or (phases[i] == Phase.WAITING and rows[i]["admitted"])
    due = [state.streams.next_due[i] for i in outcome.run]
    turns = [
        100.0 if phases[i] == Phase.WAITING else min(t, 100.0 + STOCKED)
        for i, t in zip(outcome.run, due, strict=True)
    ]
    assert turns == sorted(turns)

    draining = sum(s for s, phase in zip(size, phases, strict=True) if phase == Phase.DRAINING)
    room = free - promised + draining + sum(size[i] for i in victims)
    alone = len(outcome.run) == 1 and not running and Phase.DRAINING not in phases
    assert alone or sum(size[i] for i in outcome.run) <= max(room, 0)
    assert running - len(victims) + len(outcome.run) <= state.memory.max_running
    assert outcome.run or not victims


def test_a_stream_without_a_reader_makes_no_room(plan, make_stream) -> None:
    dry = make_stream(Phase.PAUSED, slack=-1.0)
    assert plan([dry, make_stream(slack=60.0)]) == ([10], [11])
    assert plan([dry, make_stream(slack=60.0, streaming=False)]) == ([], [])


def test_the_band_is_of_what_is_read(make_state, make_stream) -> None:
    # 900 of 1000 tokens were reasoning: 100 and the 3,000 to come are read.
    row = make_stream(generated=1000, visible=100, expected=LONG)
    assert useful_band(make_state([row]), CONFIG, np.array([0])).tolist() == [31.0]


@settings(deadline=None)
@given(data=st.data())
def test_the_most_urgent_are_the_head_of_all_in_order(data) -> None:
    """Among equal ones the order of arrival counts."""
    count = data.draw(st.integers(0, 200))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    kinds = data.draw(st.integers(1, 200))
    held, turns = rng.random(count) < 0.3, rng.integers(0, kinds, count) / 2.0
    second = np.where(rng.random(count) < 0.5, -np.inf, rng.integers(0, 3, count))
    whole = np.lexsort((second, turns, held))[:CONSIDERED]
    assert _most_urgent(turns, second, held).tolist() == whole.tolist()
    whole = np.lexsort((second, turns))[:CONSIDERED]
    assert _most_urgent(turns, second, None).tolist() == whole.tolist()
