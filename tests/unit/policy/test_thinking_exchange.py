"""Streams that think, beside readers and newcomers: which comes in, and which makes room."""

from __future__ import annotations

import numpy as np
import pytest
from exchanging import LONG, joined

from tokenflow_sgl.contract import Phase


def test_what_thinks_goes_on_in_one_order_with_newcomers(plan, make_stream) -> None:
    rows = [
        make_stream(Phase.WAITING, admitted=True),
        make_stream(Phase.PAUSED, slack=-40.0, thinking=True),  # minus the time waited
        make_stream(Phase.PAUSED, slack=-0.5),
        make_stream(Phase.PAUSED, slack=1.0),
    ]
    assert plan(rows, keys=[-3.0, -4.0, 0.0, 0.0], free=9_000) == ([12, 11, 10, 13], [])
    assert plan(rows, keys=[-3.0, -2.0, 0.0, 0.0], free=9_000) == ([12, 10, 11, 13], [])
    rows[1]["thinking"], rows[1]["visible"] = False, 100
    assert plan(rows, free=9_000)[0][0] == 11, "a reader so late would come first"


@pytest.mark.parametrize(("key", "goes"), [(-4.0, False), (-3.0, False), (-2.0, True)])
def test_what_thinks_gives_way_to_what_comes_before_it(plan, make_stream, key, goes) -> None:
    thinker = make_stream(slack=-40.0, thinking=True)
    newcomer = make_stream(Phase.WAITING, admitted=True, prompt=150)
    assert plan([thinker, newcomer], keys=[key, -3.0]) == (([11], [10]) if goes else ([], []))
    paused = make_stream(Phase.PAUSED, slack=-30.0, thinking=True)
    assert plan([thinker, paused], keys=[key, -3.0]) == (([11], [10]) if goes else ([], []))
    thinker["since"] = 99.8
    assert plan([thinker, newcomer], keys=[key, -3.0]) == ([], []), "it has just begun"


def test_of_those_that_think_the_last_one_gives_way(plan, make_stream) -> None:
    rows = [make_stream(slack=-40.0, thinking=True) for _ in range(3)]
    newcomer = make_stream(Phase.WAITING, admitted=True, prompt=150)
    assert plan([*rows, newcomer], keys=[-2.0, -1.0, -1.5, -3.0]) == ([13], [11])
    saturated = make_stream(slack=3.5)
    assert plan([*rows, saturated, newcomer], keys=[-2.0, -1.0, -1.5, 0.0, -3.0]) == ([14], [13])
    sprinter = make_stream(slack=30.0)
    assert plan([*rows, sprinter, newcomer], keys=[-2.0, -1.0, -1.5, 0.0, -3.0]) == ([14], [11])


@pytest.mark.parametrize(("slack", "urgent"), [(3.9, True), (4.1, False)])
def test_what_thinks_gives_way_to_a_reader_where_no_other_does(
    plan, make_stream, slack, urgent
) -> None:
    thinker = make_stream(slack=-40.0, thinking=True)
    paused = make_stream(Phase.PAUSED, slack=slack, expected=LONG)
    assert plan([thinker, paused], keys=[-9.0, 0.0]) == (([11], [10]) if urgent else ([], []))
    reader = make_stream(slack=30.0)
    if urgent:
        assert plan([thinker, reader, paused], keys=[-9.0, 0.0, 0.0]) == ([12], [11])


def test_what_thinks_gives_way_to_a_reader_also_where_nothing_may_overtake_it(
    plan, make_stream
) -> None:
    first = -np.inf  # its key where `overtake` is 0
    thinker = make_stream(slack=-40.0, thinking=True)
    dry = make_stream(Phase.PAUSED, slack=-1.0, expected=LONG)
    assert plan([thinker, dry], keys=[first, 0.0]) == ([11], [10])
    newcomer = make_stream(Phase.WAITING, admitted=True, prompt=150)
    assert plan([thinker, newcomer], keys=[first, first]) == ([], [])


def test_what_a_patient_newcomer_may_not_take_a_reader_still_may(plan, make_stream) -> None:
    thinker = make_stream(slack=-40.0, thinking=True)
    patient = make_stream(Phase.WAITING, admitted=True, prompt=150, slack=-1.0, tolerance=2.0)
    paused = make_stream(Phase.PAUSED, slack=1.5, expected=LONG)
    assert plan([thinker, patient], keys=[-4.0, -3.0]) == ([], [])
    assert plan([thinker, patient, paused], keys=[-4.0, -3.0, 0.0]) == ([12], [10])


def test_what_is_held_gets_only_what_is_free(plan, make_stream) -> None:
    rows = [make_stream(Phase.PAUSED, slack=-40.0, thinking=True) for _ in range(2)]
    assert plan(rows, free=9_000) == ([10, 11], [])
    assert plan(rows, free=9_000, answer=joined(held=(0,))) == ([11, 10], []), "and comes last"
    # A reader that can bear it gives way to the second one, not to the first.
    rows.append(make_stream(slack=30.0))
    assert plan(rows[1:]) == ([10], [11])
    assert plan(rows, answer=joined(held=(0,))) == ([11], [12])
    assert plan(rows, answer=joined(held=(0, 1))) == ([], [])


def test_an_idle_engine_resumes_what_is_held(plan, make_stream) -> None:
    rows = [make_stream(Phase.PAUSED, slack=-40.0, thinking=True) for _ in range(2)]
    assert plan(rows, answer=joined(held=(0, 1))) == ([10], [])


def test_what_thinks_displaces_as_a_newcomer_does(plan, make_stream) -> None:
    # A reader with 5 s of slack bears the switch for a newcomer, but not for a paused reader.
    victim = make_stream(slack=5.0, expected=LONG)
    assert plan([victim, make_stream(Phase.PAUSED, slack=-1.0, expected=LONG)]) == ([], [])
    paused = make_stream(Phase.PAUSED, slack=-1.0, expected=LONG, thinking=True)
    assert plan([victim, paused]) == ([11], [10])
