"""What is computed once per state is what its arrays say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Phase, Standing
from tokenflow_sgl.policy import WorkingSetPolicy


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 40), unique=True, min_size=1, max_size=12), st.data())
def test_slots_are_found_where_they_are(make_state, make_stream, slots, data) -> None:
    streams = make_state([make_stream() for _ in slots]).streams
    standing = dataclasses.replace(streams.standing, slot=np.array(slots))
    streams = dataclasses.replace(streams, standing=standing)
    asked = data.draw(st.lists(st.integers(-3, 60), max_size=20))
    expected = [slots.index(slot) if slot in slots else -1 for slot in asked]
    assert streams.find(asked).tolist() == expected


def test_among_no_streams_none_is_found(make_state) -> None:
    assert make_state([]).streams.find([0, 3]).tolist() == [-1, -1]


def test_a_decode_step_is_that_of_the_running_ones(make_state, make_stream) -> None:
    rows = [
        make_stream(Phase.WAITING, prompt=7000, slack=None),
        make_stream(prompt=300, generated=20),
        make_stream(Phase.PAUSED, prompt=9000),
        make_stream(prompt=500, generated=1),
    ]
    made = make_state(rows)
    assert made.streams.waiting_index.tolist() == [0]
    assert made.streams.running_index.tolist() == [1, 3]
    assert made.streams.running_context == 821
    assert made.decode_seconds == pytest.approx(made.costs.decode_seconds(2, 821.0))


def test_what_is_expected_of_some_is_what_is_expected_of_all(make_state, make_stream) -> None:
    rows = [make_stream(expected=900), make_stream(expected=40), make_stream(generated=7)]
    streams = make_state(rows).streams
    some = np.array([2, 0])
    assert streams.expected_of(some).tolist() == streams.expected[some].tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(list(Phase)), st.floats(0.0, 99.0)), max_size=12))
def test_a_standing_says_who_is_in_which_phase(rows) -> None:
    phase = np.array([one for one, _ in rows], dtype=np.int8)
    since = np.array([moment for _, moment in rows])
    standing = Standing(np.arange(len(rows)), phase, since)
    for one in Phase:
        mask = getattr(standing, one.name.lower())
        assert mask.tolist() == [each is one for each, _ in rows]
    for one in (Phase.WAITING, Phase.RUNNING, Phase.DRAINING, Phase.LOADING, Phase.PAUSED):
        index = getattr(standing, f"{one.name.lower()}_index")
        assert index.tolist() == [place for place, (each, _) in enumerate(rows) if each is one]
    waits = [moment for one, moment in rows if one is Phase.WAITING]
    assert standing.waits_since == (min(waits, default=np.inf), max(waits, default=-np.inf))
    elsewhere = (Phase.DRAINING, Phase.PAUSED, Phase.LOADING)
    assert standing.some_in_no_batch == any(one in elsewhere for one, _ in rows)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_a_memo_found_stands_while_no_stream_moves(make_state, make_stream, data) -> None:
    """The pass after a plan decides the same whether the body hands out its standing again."""
    phase = st.sampled_from(list(Phase))
    rows = [
        make_stream(one, slack=None if one is Phase.WAITING else data.draw(st.floats(-5.0, 30.0)))
        for one in data.draw(st.lists(phase, min_size=1, max_size=20))
    ]
    made = make_state(rows, free=data.draw(st.integers(0, 3000)))
    memo = WorkingSetPolicy().decide(made).memo
    standing = made.streams.standing
    decided = []
    for kept in (standing, standing.among(np.arange(len(rows)))):
        streams = dataclasses.replace(made.streams, standing=kept)
        state = dataclasses.replace(made, now=made.now + 0.01, streams=streams, memo=memo)
        decided.append(WorkingSetPolicy().decide(state))
    assert decided[0] == decided[1]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_without_columns_of_thoughts_no_stream_thinks(make_state, make_stream, data) -> None:
    """A body whose streams never think leaves them out: the decision is the same."""
    phase = st.sampled_from(list(Phase))
    rows = [
        make_stream(
            one,
            slack=None if one is Phase.WAITING else data.draw(st.floats(-5.0, 30.0)),
            prompt=data.draw(st.integers(1, 4000)),
        )
        for one in data.draw(st.lists(phase, min_size=1, max_size=30))
    ]
    whole = make_state(rows)
    bare = dataclasses.replace(whole.streams, thinking=None, visible=None)
    decided = [
        WorkingSetPolicy().decide(dataclasses.replace(whole, streams=streams))
        for streams in (whole.streams, bare)
    ]
    assert decided[0] == decided[1]
