"""Token deposit: an even stream while it lasts, and all of the rest at the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.placement.deposit import (
    Deposit,
    covered_until,
    delivery_times,
    held_tokens,
)

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


def left(deposit: Deposit, until: float) -> list[float]:
    """When tokens leave if each is taken when it is due, up to a moment."""
    moments = []
    while (due := deposit.due()) <= until:
        assert deposit.take(due) == 1
        moments.append(due)
    return moments


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 2.0), max_size=30), st.floats(0.01, 1.0))
def test_a_deposit_delivers_as_the_function_says(gaps, interval) -> None:
    generated = np.cumsum(gaps)
    deposit, moments = Deposit(interval), []
    for at in generated:
        moments += left(deposit, np.nextafter(at, -1.0))
        deposit.put(1, at)
    moments += left(deposit, 1e9)
    assert moments == pytest.approx(delivery_times(generated, interval, complete=False), abs=1e-9)
    assert deposit.held == 0 and deposit.due() == np.inf


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 0.3), min_size=1, max_size=40))
def test_who_comes_late_falls_no_further_behind(delays) -> None:
    """However late each look is, as much has left as was due by then."""
    deposit, now, taken = Deposit(0.1), 0.0, 0
    deposit.put(1000, now)
    for delay in delays:
        now += delay
        taken += deposit.take(now)
        assert taken == pytest.approx(now / 0.1 + 1, abs=1.0 + 1e-6)


def test_tokens_that_nobody_reads_take_no_interval() -> None:
    deposit = Deposit(0.5)
    deposit.put(3, 0.0, free=3)
    assert deposit.take(0.0) == 3
    deposit.put(2, 0.1, free=1)
    assert deposit.take(0.1) == 2, "the first token that is read is not held"
    deposit.put(2, 0.2)
    assert deposit.take(0.2) == 0
    assert deposit.take(0.6) == 1
    deposit.unseen()
    assert deposit.due() == pytest.approx(0.6)
    assert deposit.take(0.6) == 1 and deposit.held == 0


def test_another_interval_counts_from_the_last_token() -> None:
    deposit = Deposit(1.0)
    deposit.put(9, 0.0)
    assert deposit.take(0.0) == 1
    deposit.change(2.0, 0.5)
    assert deposit.due() == pytest.approx(2.0)
    deposit.change(0.25, 1.0)
    assert deposit.due() == pytest.approx(1.0), "late by now, and only one of them"
    assert deposit.take(1.0) == 1
    assert deposit.due() == pytest.approx(1.25)


def test_a_reader_who_was_away_gets_no_burst() -> None:
    deposit = Deposit(0.1)
    deposit.put(2, 0.0)
    assert deposit.take(0.0) == 1
    deposit.change(np.inf, 0.05)
    deposit.put(100, 1.0)
    assert deposit.due() == np.inf and deposit.take(50.0) == 0 and deposit.held == 101
    deposit.change(0.1, 60.0)
    assert deposit.take(60.0) == 1
    assert left(deposit, 60.35) == pytest.approx([60.1, 60.2, 60.3])
