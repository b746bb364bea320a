from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tokenflow_sgl.qos import ReaderBank, play

RATES = st.builds(Fraction, st.integers(1, 200), st.sampled_from([1, 2, 4]))
# Slots on both sides of several doublings of a bank that starts with room for 2.
SLOTS = (0, 1, 2, 5, 17)


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def bank_of(rate: float, *, expected_tokens: int = 100, slot: int = 0) -> ReaderBank:
    bank = ReaderBank(4)
    bank.open(slot, rate=rate, arrival=0.0, expected_tokens=expected_tokens)
    return bank


@dataclass(frozen=True)
class Step:
    gap_ms: int
    order: list[int]  # positions into SLOTS, each once
    counts: list[int]


@st.composite
def steps(draw: st.DrawFn) -> Step:
    order = draw(st.lists(st.integers(0, len(SLOTS) - 1), unique=True, max_size=len(SLOTS)))
    counts = [draw(st.integers(0, 6)) for _ in order]
    return Step(draw(st.one_of(st.just(0), st.integers(0, 1500))), order, counts)


def test_by_hand() -> None:
    # rate 2/s, L = 10: a token lasts 0.5 s, weight 1 up to a buffer of 1, 0 from 2 on.
    bank = bank_of(2.0, expected_tokens=10)
    slot = ints(0)
    assert bank.slack(slot, 0.75).tolist() == [-0.75]  # not served yet: minus the time waited
    assert bank.buffer_tokens(slot, 0.75).tolist() == [0]
    assert math.isnan(bank.first_token[0])

    # t = 1: three tokens meet 0, 1, 2 -> weights 1, 1, 0; due at 1 + 3 * 0.5 = 2.5
    first = bank.deliver(slot, ints(3), 1.0)
    assert (first.stalled[0], first.was_stall[0], first.buffer_tokens[0]) == (0, False, 0)
    assert first.effective[0] == pytest.approx(2)
    assert bank.next_due[0] == pytest.approx(2.5)
    assert bank.first_token[0] == 1.0

    # t = 1.75: one token of the three is read, half of the second: 1.5 unread, 0.75 s of slack
    assert bank.buffer_tokens(slot, 1.75)[0] == pytest.approx(1.5)
    assert bank.buffer_seconds(slot, 1.75)[0] == pytest.approx(0.75)
    # t = 1.75: one token meets 1.5 -> weight 0.5; due at 3.0
    second = bank.deliver(slot, ints(1), 1.75)
    assert second.buffer_tokens[0] == pytest.approx(1.5)
    assert second.effective[0] == pytest.approx(0.5)
    assert bank.slack(slot, 3.25)[0] == pytest.approx(-0.25)  # stalling for 0.25 s so far

    # t = 4: one second late; two tokens meet 0 and 1; due at 4 + 2 * 0.5 = 5
    third = bank.deliver(slot, ints(2), 4.0)
    assert third.stalled[0] == pytest.approx(1.0)
    assert third.was_stall[0]
    assert third.effective[0] == pytest.approx(2)
    assert bank.next_due[0] == pytest.approx(5.0)
    assert bank.stall_seconds[0] == pytest.approx(1.0)
    assert bank.stall_count[0] == 1
    assert bank.delivered[0] == 6


@settings(deadline=None)
@given(st.lists(RATES, min_size=5, max_size=5), st.lists(steps(), max_size=30), st.integers(0, 999))
def test_equals_slow_readers(
    slow_reader: Any, rates: list[Fraction], script: list[Step], later_ms: int
) -> None:
    lengths = [1, 7, 40, 200, 1000]
    bank = ReaderBank(2)
    readers = [slow_reader(rate, length) for rate, length in zip(rates, lengths, strict=True)]
    for slot, rate, length in zip(SLOTS, rates, lengths, strict=True):
        bank.open(slot, rate=float(rate), arrival=0.0, expected_tokens=length)

    now = Fraction(0)
    for step in script:
        now += Fraction(step.gap_ms, 1000)
        slots = ints(*(SLOTS[i] for i in step.order))
        delivery = bank.deliver(slots, ints(*step.counts), float(now))
        for at, (i, count) in enumerate(zip(step.order, step.counts, strict=True)):
            reader = readers[i]
            assert delivery.buffer_tokens[at] == pytest.approx(float(reader.unread(now)), abs=1e-8)
            for _ in range(count):
                reader.push(now)
            new = len(reader.stalls) - count
            stalled = sum(reader.stalls[new:], Fraction(0))
            assert delivery.stalled[at] == pytest.approx(float(stalled), abs=1e-9)
            assert delivery.was_stall[at] == (stalled > Fraction(1, 10))
            weight = float(sum(reader.weights[new:]))
            assert delivery.effective[at] == pytest.approx(weight, abs=1e-6)

    now += Fraction(later_ms, 1000)
    slots = ints(*SLOTS)
    buffers = bank.buffer_tokens(slots, float(now))
    slack = bank.slack(slots, float(now))
    assert (buffers >= 0).all()
    for at, (slot, reader, rate) in enumerate(zip(SLOTS, readers, rates, strict=True)):
        unread = reader.unread(now)
        assert buffers[at] == pytest.approx(float(unread), abs=1e-8)
        assert bank.delivered[slot] == reader.arrived
        assert bank.started[slot] == bool(reader.arrived)
        assert bank.stall_seconds[slot] == pytest.approx(float(reader.stall_seconds), abs=1e-8)
        assert bank.stall_count[slot] == reader.stall_count
        if reader.arrived:
            assert bank.first_token[slot] == pytest.approx(float(reader.consumed[0]))
            idle = Fraction(0) if reader.idle_since is None else now - reader.idle_since
            assert slack[at] == pytest.approx(float(unread / rate - idle), abs=1e-8)
        else:
            assert math.isnan(bank.first_token[slot])
            assert slack[at] == pytest.approx(-float(now))


@settings(deadline=None)
@given(RATES, st.lists(st.tuples(st.integers(0, 1500), st.integers(0, 9)), max_size=30))
def test_one_delivery_equals_single_ones_at_the_same_instant(
    rate: Fraction, script: list[tuple[int, int]]
) -> None:
    whole, single = (bank_of(float(rate)) for _ in range(2))
    now = 0.0
    for gap, count in script:
        now += gap / 1000
        effective = whole.deliver(ints(0), ints(count), now).effective[0]
        alone = [single.deliver(ints(0), ints(1), now).effective[0] for _ in range(count)]
        assert effective == pytest.approx(sum(alone), abs=1e-7)
    for name in ("delivered", "stall_count"):
        assert getattr(whole, name)[0] == getattr(single, name)[0]
    for name in ("next_due", "stall_seconds"):
        assert getattr(whole, name)[0] == pytest.approx(getattr(single, name)[0], abs=1e-7)


@settings(deadline=None)
@given(RATES, st.lists(st.integers(0, 1500), min_size=1, max_size=60))
def test_live_bank_and_recorded_playback_agree(rate: Fraction, gaps: list[int]) -> None:
    bank = bank_of(float(rate))
    times = np.cumsum(gaps) / 1000
    met = [bank.deliver(ints(0), ints(1), float(t)).buffer_tokens[0] for t in times]
    playback = play(times, float(rate))
    np.testing.assert_allclose(met, playback.buffer_met, atol=1e-8)
    assert bank.stall_seconds[0] == pytest.approx(playback.stalls.sum(), abs=1e-9)
    assert bank.next_due[0] == pytest.approx(playback.consumed[-1] + 1 / float(rate))


@settings(deadline=None)
@given(RATES, st.integers(1, 30), st.integers(0, 3000))
def test_whole_tokens_in_a_fractional_buffer(
    slow_replay: Any, rate: Fraction, count: int, later_ms: int
) -> None:
    # Not yet consumed: max(ceil(x) - 1, 0), the slow reader's explicit buffer.
    bank = bank_of(float(rate))
    bank.deliver(ints(0), ints(count), 0.0)
    now = Fraction(later_ms, 1000)
    slow = slow_replay([Fraction(0)] * count, rate, 100)
    slow.advance(now)
    x = bank.buffer_tokens(ints(0), float(now))[0]
    x = round(x) if abs(x - round(x)) < 1e-9 else x  # floats at the instant of taking up
    assert max(math.ceil(x) - 1, 0) == len(slow.buffer)


def test_counts_of_zero_or_less_change_nothing() -> None:
    bank = bank_of(10.0)
    bank.deliver(ints(0), ints(0), 1.0)
    assert not bank.started[0]
    assert bank.next_due[0] == 0.0
    bank.deliver(ints(0), ints(1), 2.0)
    late = bank.deliver(ints(0), ints(0), 5.0)  # a step without a token does not end the stall
    bank.deliver(ints(0), ints(-3), 5.0)
    assert (late.stalled[0], late.was_stall[0]) == (0, False)
    assert (bank.delivered[0], bank.stall_count[0], bank.stall_seconds[0]) == (1, 0, 0)
    assert bank.deliver(ints(0), ints(1), 6.1).stalled[0] == pytest.approx(4.0)


def test_empty_call() -> None:
    delivery = ReaderBank().deliver(ints(), ints(), 1.0)
    assert delivery.stalled.size == delivery.effective.size == 0


def test_closed_reader_never_stalls_and_ignores_deliveries() -> None:
    bank = bank_of(10.0)
    bank.deliver(ints(0), ints(2), 1.0)
    bank.close(0)
    bank.close(0)
    bank.close(10_000)
    assert bank.slack(ints(0), 50.0).tolist() == [math.inf]
    assert bank.buffer_tokens(ints(0), 1.0).tolist() == [0]
    delivery = bank.deliver(ints(0), ints(5), 50.0)
    assert (delivery.stalled[0], delivery.effective[0], bank.delivered[0]) == (0, 0, 2)
    assert bank.slack(ints(0), 50.0).tolist() == [math.inf]
    assert bank.first_token[0] == 1.0  # its figures stay readable


def test_reopening_starts_afresh() -> None:
    bank = bank_of(10.0)
    bank.deliver(ints(0), ints(2), 1.0)
    bank.deliver(ints(0), ints(2), 9.0)
    bank.close(0)
    bank.open(0, rate=5.0, arrival=10.0, expected_tokens=7)
    assert (bank.delivered[0], bank.stall_count[0], bank.stall_seconds[0]) == (0, 0, 0)
    assert (bank.rate[0], bank.next_due[0]) == (5.0, 10.0)
    assert math.isnan(bank.first_token[0])
    assert not bank.started[0]


def test_growing_keeps_the_streams() -> None:
    bank = bank_of(10.0, slot=3)
    bank.deliver(ints(3), ints(2), 1.0)
    bank.open(1000, rate=1.0, arrival=0.0, expected_tokens=1)
    assert bank.capacity == 1024
    assert bank.delivered[3] == 2
    assert bank.next_due[3] == pytest.approx(1.2)
    assert bank.next_due[999] == math.inf


@pytest.mark.parametrize("odd", [3.0, -1.0, math.nan, math.inf, -math.inf])
def test_clock_never_runs_backwards(odd: float) -> None:
    odd_bank, plain = bank_of(10.0), bank_of(10.0)
    for bank, second in ((odd_bank, odd), (plain, 5.0)):
        bank.deliver(ints(0), ints(1), 5.0)
        bank.deliver(ints(0), ints(1), second)
        assert bank.clock == 5.0
        bank.deliver(ints(0), ints(1), 6.0)
    assert odd_bank.next_due[0] == plain.next_due[0]
    assert odd_bank.stall_seconds[0] == plain.stall_seconds[0]
    assert odd_bank.slack(ints(0), 0.0)[0] == odd_bank.slack(ints(0), 6.0)[0]


def test_asking_about_the_future_does_not_move_the_clock() -> None:
    bank = bank_of(10.0)
    bank.deliver(ints(0), ints(1), 1.0)
    bank.slack(ints(0), 100.0)
    bank.buffer_tokens(ints(0), 100.0)
    assert bank.clock == 1.0


@pytest.mark.parametrize("origin", [0.0, 1.7e9])
def test_pacing_exactly_at_the_rate_is_no_stall(origin: float) -> None:
    bank = ReaderBank()
    bank.open(0, rate=30.0, arrival=origin, expected_tokens=3000)
    effective = 0.0
    for j in range(3000):
        effective += bank.deliver(ints(0), ints(1), origin + j / 30).effective[0]
    assert bank.stall_count[0] == 0
    assert bank.stall_seconds[0] < 1e-3
    assert effective == pytest.approx(3000)


def test_a_better_length_estimate_counts_from_then_on() -> None:
    # L = 10: 20 tokens together weigh 1, 1, 0, ...; with L = 1000 nearly all would count
    bank = bank_of(1.0, expected_tokens=10)
    assert bank.deliver(ints(0), ints(20), 0.0).effective[0] == pytest.approx(2)
    bank.expected_tokens[0] = 1000
    assert bank.deliver(ints(0), ints(20), 0.0).effective[0] == pytest.approx(20)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rate", 0.0, "rate must be a finite number > 0, got 0.0"),
        ("rate", -3.0, "rate must be a finite number > 0, got -3.0"),
        ("rate", math.nan, "rate must be a finite number > 0, got nan"),
        ("rate", math.inf, "rate must be a finite number > 0, got inf"),
        ("arrival", math.nan, "arrival must be a finite number, got nan"),
        ("expected_tokens", 0, "expected_tokens must be a whole number >= 1, got 0"),
        ("expected_tokens", -5, "expected_tokens must be a whole number >= 1, got -5"),
        ("expected_tokens", 2.5, "expected_tokens must be a whole number >= 1, got 2.5"),
        ("slot", -1, "slot must be a whole number >= 0, got -1"),
        ("slot", 0, "slot must be closed before it is opened again, got open slot 0"),
    ],
)
def test_open_refuses_and_changes_nothing(field: str, value: Any, message: str) -> None:
    bank = bank_of(10.0)
    arguments: dict[str, Any] = {"slot": 9, "rate": 1.0, "arrival": 0.0, "expected_tokens": 10}
    arguments[field] = value
    with pytest.raises(ValueError, match=message):
        bank.open(**arguments)
    assert bank.capacity == 4
    assert bank.is_open.tolist() == [True, False, False, False]


def test_constructor_refuses() -> None:
    with pytest.raises(ValueError, match="capacity must be a whole number >= 1, got 0"):
        ReaderBank(0)
    with pytest.raises(ValueError, match="tau2 must be > tau1"):
        ReaderBank(tau1=0.3, tau2=0.2)
