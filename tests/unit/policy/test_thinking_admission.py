"""Admission of streams that think: no reader sees their tokens yet."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from admitting import AS_MODELLED, COSTS

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import admissible

FREE_OF_CHARGE = StepCosts()

pytestmark = pytest.mark.usefixtures("one_margin")


def test_what_thinks_asks_for_its_own_rate(joins, member, newcomer) -> None:
    # At 5 tokens/s 1000 tokens are due within 200 s: 2 * 70 / 210 = 0.667 at the worst horizon.
    thinking = [member(thinking=True), newcomer(thinking=True)]
    assert joins(thinking, thinking_rate=5.0) == [1]
    assert joins(thinking, thinking_rate=5.0, eta=0.66) == []
    assert joins(thinking, thinking_rate=10.0, eta=1.27) == []
    assert joins(thinking, thinking_rate=10.0, eta=1.28) == [1]
    # The engine decodes no stream faster than 10 tokens/s.
    assert joins(thinking, thinking_rate=1000.0, eta=1.28) == [1]
    assert joins([member(), newcomer()], thinking_rate=5.0) == [], "readers ask for theirs"


def test_readers_of_nothing_do_not_stall(joins, member, newcomer) -> None:
    reader = member(slack=-1.0, expected=140.0, rate=5.0)
    thinker = member(slack=-1.0, expected=140.0, rate=5.0, thinking=True)
    small = newcomer(expected=10.0)
    assert joins([reader, small], eta=10.0) == [], "its reader stalls"
    assert joins([thinker, small], eta=10.0) == [1]


@pytest.fixture
def admitted(make_state):
    """What the test says where the streams without text have these keys."""

    def ask(rows, keys, **config):
        state = make_state(rows, total=1000, free=0, host=100_000, costs=COSTS)
        state = dataclasses.replace(state, kv_rate=AS_MODELLED)
        config = {"eta": 1.0, "hysteresis": 0.0, **config}
        found = admissible(state, WorkingSetConfig(**config), np.array(keys))
        return [found.join.tolist(), found.held.tolist()]

    return ask


# Each of two alike asks for 0.636 of the engine at the worst horizon: together 1.27.
def test_what_thinks_does_not_hold_off_what_comes_before_it(admitted, member, newcomer) -> None:
    rows = [member(thinking=True), newcomer(thinking=True)]
    assert admitted(rows, [-3.0, -2.0]) == [[], []], "the newcomer comes second"
    assert admitted(rows, [-2.0, -3.0]) == [[1], [0]]
    assert admitted(rows, [-2.0, -3.0], eta=1.28) == [[1], []]
    reader = [member(), newcomer(thinking=True)]
    assert admitted(reader, [0.0, -3.0]) == [[], []], "readers come before both"


def test_what_thinks_is_held_from_the_first_that_does_not_fit(admitted, member) -> None:
    two = [member(Phase.PAUSED, thinking=True) for _ in range(2)]
    assert admitted(two, [-1.0, -2.0], eta=0.6) == [[], [1, 0]]
    assert admitted(two, [-1.0, -2.0], eta=0.7) == [[], [0]]
    assert admitted(two, [-1.0, -2.0], eta=1.28) == [[], []]


def test_while_readers_stall_what_thinks_is_held(admitted, member) -> None:
    rows = [member(expected=100.0, slack=-1.0, rate=5.0), member(expected=110.0, thinking=True)]
    assert admitted(rows, [0.0, -1.0]) == [[], [1]]


def test_what_thinks_holds_memory_wherever_it_comes(make_state, member, newcomer) -> None:
    # A hundred tokens of prompt and 0.6 of a hundred to come: 160 of 1000; the thinker has 700.
    rows = [member(prompt=600, generated=100, expected=101.0, thinking=True)]
    rows += [newcomer(prompt=100, expected=100.0) for _ in range(3)]
    keys = np.array([-1.0, -2.0, -2.0, -2.0])
    state = make_state(rows, total=1000, free=0, host=0, costs=FREE_OF_CHARGE)
    assert admissible(state, WorkingSetConfig(fill=1.0), keys).join.tolist() == [1]
