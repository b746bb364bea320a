"""Readers whose rate changes, who look away, or who have got less than was believed."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.qos import ReaderBank, change_rate, take_back

SLOT = np.array([0])


def bank_of(rate: float) -> ReaderBank:
    bank = ReaderBank(1)
    bank.open(0, rate=rate, arrival=0.0, expected_tokens=1000)
    return bank


def deliver(bank: ReaderBank, tokens: int, now: float) -> float:
    return float(bank.deliver(SLOT, np.array([tokens]), now).stalled[0])


class Fluid:
    """A reader as a vessel that runs out at the rate of the moment; exact."""

    def __init__(self, rate: Fraction) -> None:
        self.rate, self.unread, self.now = rate, Fraction(0), Fraction(0)
        self.started, self.stalled = False, Fraction(0)

    def wait(self, until: Fraction) -> None:
        span, self.now = until - self.now, until
        if not self.started or not self.rate:
            return
        reads = min(span, self.unread / self.rate)
        self.unread -= reads * self.rate
        self.stalled += span - reads


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 1500),  # milliseconds since the last one
        st.one_of(
            st.integers(0, 6).map(lambda tokens: ("deliver", tokens)),
            st.sampled_from([0, 1, 2, 5, 20, 200]).map(lambda rate: ("rate", rate)),
        ),
    ),
    max_size=30,
)


@given(first=st.sampled_from([1, 4, 30]), events=EVENTS)
def test_like_a_vessel_that_runs_out(first, events) -> None:
    bank, fluid = bank_of(first), Fluid(Fraction(first))
    now = Fraction(0)
    for gap, (what, value) in events:
        now += Fraction(gap, 1000)
        fluid.wait(now)
        if what == "deliver":
            deliver(bank, value, float(now))
            fluid.unread += value
            fluid.started |= value > 0
        else:
            change_rate(bank, 0, float(value), float(now))
            fluid.rate = Fraction(value)
        assert bank.buffer_tokens(SLOT, float(now))[0] == pytest.approx(float(fluid.unread))
        assert bool(bank.resting[0]) == (fluid.rate == 0)
    # A stall in progress is counted when it ends; for a reader that rests there is none.
    change_rate(bank, 0, 0.0, float(now))
    assert bank.stall_seconds[0] == pytest.approx(float(fluid.stalled), abs=1e-9)


def test_a_resting_reader_is_due_never_and_goes_on_where_it_was() -> None:
    bank = bank_of(10.0)
    deliver(bank, 20, 1.0)
    change_rate(bank, 0, 0.0, 2.0)
    assert bank.slack(SLOT, 50.0)[0] == math.inf
    assert deliver(bank, 5, 60.0) == 0.0, "no stall while its reader rests"
    assert bank.buffer_tokens(SLOT, 60.0)[0] == 15.0
    change_rate(bank, 0, 5.0, 100.0)
    assert bank.slack(SLOT, 100.0)[0] == pytest.approx(3.0)


def test_a_stall_that_is_given_up_is_reported_once_and_counted_once() -> None:
    bank = bank_of(10.0)
    deliver(bank, 10, 1.0)
    change_rate(bank, 0, 0.0, 4.0)
    assert (bank.stall_seconds[0], bank.stall_count[0]) == (2.0, 1)
    told = bank.deliver(SLOT, np.array([0]), 4.5)
    assert (told.stalled[0], told.was_stall[0]) == (2.0, True)
    told = bank.deliver(SLOT, np.array([3]), 5.0)
    assert (told.stalled[0], told.was_stall[0]) == (0.0, False)
    assert (bank.stall_seconds[0], bank.stall_count[0]) == (2.0, 1)


def test_what_a_reader_tolerates_is_no_stall_when_it_looks_away() -> None:
    bank = ReaderBank(1)
    bank.open(0, rate=10.0, arrival=0.0, expected_tokens=1000, tolerance=3.0)
    deliver(bank, 10, 1.0)
    change_rate(bank, 0, 0.0, 4.0)
    assert (bank.stall_seconds[0], bank.stall_count[0]) == (2.0, 0)
    assert not bank.deliver(SLOT, np.array([0]), 4.5).was_stall[0]


def test_a_stall_of_a_stream_before_is_none_of_the_next() -> None:
    bank = bank_of(10.0)
    deliver(bank, 10, 1.0)
    change_rate(bank, 0, 0.0, 4.0)
    bank.close(0)
    assert bank.deliver(SLOT, np.array([0]), 4.5).stalled[0] == 0.0
    bank.open(0, rate=4.0, arrival=5.0, expected_tokens=10)
    assert deliver(bank, 4, 6.0) == 0.0


def test_a_reader_that_rested_before_its_first_token_waits_since_it_is_back() -> None:
    bank = bank_of(10.0)
    change_rate(bank, 0, 0.0, 2.0)
    bank.redate(0, 1.0)
    assert bank.next_due[0] == math.inf
    change_rate(bank, 0, 20.0, 3.0)
    assert (bank.next_due[0], bank.rate[0]) == (3.0, 20.0)
    change_rate(bank, 0, 5.0, 9.0)
    assert bank.next_due[0] == 3.0, "it has not rested since"


def test_a_stall_goes_on_at_another_rate() -> None:
    bank = bank_of(10.0)
    deliver(bank, 10, 0.0)
    change_rate(bank, 0, 2.0, 3.0)
    assert deliver(bank, 1, 4.0) == pytest.approx(3.0), "since second 1"


@pytest.mark.parametrize("rate", [-1.0, math.nan, math.inf])
def test_a_rate_that_is_none_changes_nothing(rate) -> None:
    bank = bank_of(10.0)
    deliver(bank, 10, 0.0)
    with pytest.raises(ValueError, match="rate"):
        change_rate(bank, 0, rate, 0.5)
    assert bank.buffer_tokens(SLOT, 0.5)[0] == 5.0


def test_a_closed_slot_is_left_alone() -> None:
    bank = bank_of(10.0)
    bank.close(0)
    change_rate(bank, 0, 0.0, 1.0)
    take_back(bank, 0, 1, 1.0)
    change_rate(bank, 7, 1.0, 1.0)
    take_back(bank, 7, 1, 1.0)
    assert not bank.resting[0] and bank.delivered[0] == 0


def test_a_slot_that_rested_begins_afresh() -> None:
    bank = bank_of(10.0)
    change_rate(bank, 0, 0.0, 1.0)
    bank.close(0)
    bank.open(0, rate=4.0, arrival=2.0, expected_tokens=10)
    deliver(bank, 4, 3.0)
    assert bank.next_due[0] == 4.0


def test_what_did_not_arrive_is_still_to_come() -> None:
    bank = bank_of(10.0)
    deliver(bank, 10, 0.0)
    deliver(bank, 10, 0.5)
    take_back(bank, 0, 10, 1.4)
    assert bank.delivered[0] == 10
    assert bank.slack(SLOT, 1.4)[0] == pytest.approx(-0.4), "it has read the others by second 1"
    assert deliver(bank, 10, 1.5) == pytest.approx(0.5)


def test_without_any_token_left_it_has_not_started() -> None:
    bank = bank_of(10.0)
    deliver(bank, 3, 1.0)
    take_back(bank, 0, 3, 1.1)
    assert not bank.started[0] and math.isnan(bank.first_token[0])
    assert bank.slack(SLOT, 2.0)[0] == -2.0, "since its arrival"


def test_what_a_resting_reader_did_not_get() -> None:
    bank = bank_of(10.0)
    deliver(bank, 10, 0.0)
    change_rate(bank, 0, 0.0, 0.5)
    take_back(bank, 0, 2, 0.6)
    assert bank.buffer_tokens(SLOT, 9.0)[0] == 3.0
