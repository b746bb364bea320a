from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.qos import consumed_at, noticed, play

# Times on a grid of 1 ms and rational rates: no lateness differs from the threshold by less than
# 1 / (1000 * 200) s, so the exact reference and the floats must agree on every stall.
GAPS = st.lists(st.one_of(st.just(0), st.integers(0, 2000)), min_size=1, max_size=60)
RATES = st.builds(Fraction, st.integers(1, 200), st.sampled_from([1, 2, 4]))


def exact_times(gaps: list[int]) -> list[Fraction]:
    return [Fraction(sum(gaps[: i + 1]), 1000) for i in range(len(gaps))]


def test_by_hand() -> None:
    # rate 2/s, a token lasts 0.5 s. Tokens at 1.0, 1.0, 1.2, 3.0, 3.1.
    # read: 1.0; 1.5; 2.0; due 2.5 but there at 3.0 (stall 0.5); then 3.5.
    # met: 0; just behind a whole token: 1; (2.0 - 1.2) * 2 = 1.6; 0; (3.5 - 3.1) * 2 = 0.8
    playback = play([1.0, 1.0, 1.2, 3.0, 3.1], 2)
    np.testing.assert_allclose(playback.consumed, [1.0, 1.5, 2.0, 3.0, 3.5])
    np.testing.assert_allclose(playback.stalls, [0, 0, 0, 0.5, 0], atol=1e-12)
    np.testing.assert_allclose(playback.buffer_met, [0, 1, 1.6, 0, 0.8])


def test_no_tokens() -> None:
    playback = play([], 10)
    assert playback.consumed.size == playback.stalls.size == playback.buffer_met.size == 0


@settings(deadline=None)
@given(GAPS, RATES)
def test_equals_the_slow_reader(slow_replay: Any, gaps: list[int], rate: Fraction) -> None:
    times = exact_times(gaps)
    slow = slow_replay(times, rate, 100)
    slow.advance(Fraction(10**6))
    fast = play([float(t) for t in times], float(rate))
    np.testing.assert_allclose(fast.consumed, [float(c) for c in slow.consumed], atol=1e-9)
    np.testing.assert_allclose(fast.stalls, [float(s) for s in slow.stalls], atol=1e-9)
    np.testing.assert_allclose(fast.buffer_met, [float(b) for b in slow.met], atol=1e-8)
    assert np.count_nonzero(noticed(fast.stalls)) == slow.stall_count


@settings(deadline=None)
@given(GAPS, RATES, st.sampled_from([0.0, 1e5, 1.7e9]))
def test_laws_of_playback(gaps: list[int], rate: Fraction, origin: float) -> None:
    times = origin + np.cumsum(gaps) / 1000
    playback = play(times, float(rate))
    digits = 1e-9 + 4 * np.spacing(origin)
    assert (playback.consumed >= times - digits).all()  # nothing is read before it is there
    assert (np.diff(playback.consumed) >= 1 / float(rate) - digits).all()  # never faster than rate
    assert (playback.buffer_met >= 0).all()
    assert (playback.stalls >= 0).all()
    # Reading time is the ideal reading time plus the stalls: no stalled second is caught up on.
    read_for = playback.consumed[-1] - times[0]
    ideal = (len(gaps) - 1) / float(rate)
    assert read_for == pytest.approx(ideal + playback.stalls.sum(), abs=digits)


@settings(deadline=None)
@given(GAPS, RATES, st.data())
def test_delivering_later_never_reduces_stall(
    gaps: list[int], rate: Fraction, data: st.DataObject
) -> None:
    # With the first token in place: holding it back too may save stalls, at the price of TTFT.
    delay = st.lists(st.integers(0, 3000), min_size=len(gaps), max_size=len(gaps))
    delays = np.array(data.draw(delay)) / 1000
    delays[0] = 0
    times = np.cumsum(gaps) / 1000
    later = np.maximum.accumulate(times + delays)
    before, after = play(times, float(rate)), play(later, float(rate))
    assert after.stalls.sum() >= before.stalls.sum() - 1e-9
    assert (after.consumed >= before.consumed - 1e-9).all()


def test_a_later_first_token_can_save_a_stall() -> None:
    # rate 1/s: tokens at 0 and 3 stall for 2 s; both at 3, not at all
    assert play([0, 3], 1).stalls.sum() == pytest.approx(2)
    assert play([3, 3], 1).stalls.sum() == 0


def naive_buffer_met(times: list[Fraction], rate: Fraction) -> list[Fraction]:
    """Consumption as floor((t - t0) * rate), no stalls, never more than was delivered."""
    first = times[0]
    return [
        Fraction(max(j - int((time - first) * rate) - 1, 0)) if j else Fraction(0)
        for j, time in enumerate(times)
    ]


def test_negative_control_naive_consumption_is_told_apart(slow_replay: Any) -> None:
    # rate 10/s: one token at 0, then nothing until five tokens come together at 5.
    # The reader stalls 4.9 s; of the five, one is read at once, the others meet 1, 2, 3, 4.
    # Without stalls the reader would have "read" 50 tokens by then: no token ever meets a buffer.
    times = [Fraction(0)] + [Fraction(5)] * 5
    rate = Fraction(10)
    slow = slow_replay(times, rate, 10)
    fast = play([float(t) for t in times], 10)
    assert [float(b) for b in slow.met] == [0, 0, 1, 2, 3, 4]
    np.testing.assert_allclose(fast.buffer_met, [0, 0, 1, 2, 3, 4])
    assert naive_buffer_met(times, rate) == [0, 0, 0, 0, 0, 0]
    assert naive_buffer_met(times, rate) != slow.met


@pytest.mark.parametrize("origin", [0.0, 1.7e9])
def test_pacing_exactly_at_the_rate_is_no_stall(origin: float) -> None:
    # Rounding makes such tokens late by up to an ulp (2.4e-7 s for clocks from 1970), not stalled.
    playback = play(origin + np.arange(20_000) / 30, 30)
    assert not noticed(playback.stalls, 0.0).any()
    assert playback.buffer_met.max() < 1e-4


def test_the_plot_curve_counts_consumed_tokens() -> None:
    # rate 1/s, tokens at 0, 0, 5: consumed at 0, 1, 5; so 1 by 0.5 s, 2 by 4 s, 3 by 5 s
    consumed = consumed_at([0, 0, 5], 1)
    assert np.searchsorted(consumed, [0.5, 4, 5], side="right").tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("times", "rate", "message"),
    [
        ([0], 0, "rate must be a finite number > 0, got 0.0"),
        ([0], -1, "rate must be a finite number > 0, got -1.0"),
        ([0], float("nan"), "rate must be a finite number > 0, got nan"),
        (
            [0, float("nan")],
            1,
            "token_times must hold a finite number everywhere, got nan at index 1",
        ),
        ([0, 2, 1], 1, "token_times must never decrease, got 1.0 s at index 2 after 2.0 s"),
        ([[0, 1]], 1, r"token_times must have one dimension .* got shape \(1, 2\)"),
    ],
)
def test_refuses(times: Any, rate: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        consumed_at(times, rate)
