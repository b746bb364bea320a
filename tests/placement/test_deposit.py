"""Token deposit: an even stream while it lasts, and all of the rest at the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.placement.deposit import covered_until, delivery_times, held_tokens

FAST = np.array([0.0, 0.1, 0.2, 0.3, 2.0])


def test_one_token_per_interval_while_the_deposit_lasts() -> None:
    delivered = delivery_times(FAST, 0.5, complete=False)
    assert delivered == pytest.approx([0.0, 0.5, 1.0, 1.5, 2.0])


def test_an_empty_deposit_delivers_at_once_and_counts_from_there() -> None:
    delivered = delivery_times(np.array([0.0, 3.0, 3.1]), 0.5, complete=False)
    assert delivered == pytest.approx([0.0, 3.0, 3.5])


def test_the_rest_goes_out_when_the_answer_is_complete() -> None:
    assert delivery_times(FAST[:4], 0.5) == pytest.approx([0.0, 0.3, 0.3, 0.3])


def test_a_pause_is_covered_by_what_is_held() -> None:
    assert held_tokens(FAST[:4], 0.5, now=0.3) == 3
    assert held_tokens(FAST[:4], 0.5, now=1.1) == 1
    assert held_tokens(FAST[:4], 0.5, now=0.3, complete=True) == 0
    assert covered_until(FAST[:4], 0.5) == pytest.approx(2.0)
    assert covered_until(FAST[:0], 0.5) == -np.inf


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 2.0), max_size=30), st.floats(0.0, 1.0), st.booleans())
def test_it_is_the_rule_step_by_step(gaps, interval, complete) -> None:
    generated = np.cumsum(gaps)
    expected: list[float] = []
    for at in generated:
        expected.append(max(at, expected[-1] + interval) if expected else at)
    if complete and expected:
        expected = [min(at, generated[-1]) for at in expected]
    found = delivery_times(generated, interval, complete=complete)
    assert found == pytest.approx(expected, abs=1e-9)
    assert (found >= generated).all()


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 2.0), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_no_gap_is_longer_than_without_it(gaps, interval) -> None:
    generated = np.cumsum(gaps)
    late = np.diff(generated) > interval
    held = np.diff(delivery_times(generated, interval, complete=False)) > interval + 1e-9
    assert held.sum() <= late.sum()  # every late token was late before, some are no longer


@pytest.mark.parametrize(
    ("generated", "interval", "message"),
    [
        ([0.0, 1.0], -1.0, "interval is -1.0; allowed is 0 or more"),
        ([0.0, 1.0], np.nan, "interval is nan; allowed is 0 or more"),
        ([1.0, 0.0], 1.0, "generated falls"),
    ],
)
def test_bad_values_are_named(generated, interval, message) -> None:
    with pytest.raises(ValueError, match=message):
        delivery_times(np.array(generated), interval)
