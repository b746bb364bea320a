from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.qos import Summary, evaluate_stream

GAPS = st.lists(st.one_of(st.just(0), st.integers(0, 2000)), min_size=1, max_size=60)
RATES = st.builds(Fraction, st.integers(1, 200), st.sampled_from([1, 2, 4]))


def test_by_hand() -> None:
    # rate 2/s, request at 0.25, tokens at 1.0, 1.0, 1.2, 3.0, 3.1 (the example of test_playback).
    # Buffers met 0, 1, 1.6, 0, 0.8; one stall of 0.5 s; TTFT 0.75 s; gaps 0, 0.2, 1.8, 0.1.
    # L = 10 would make the band 1 to 2: weights 1, 1, 0.4, 1, 1 = 4.4; the recording ends at 3.2.
    # Eq. 1 with tau = 0.5, alpha = 1: 1, 0.5, 0, 1, 0.7 = 3.2.
    stream = evaluate_stream(
        [1.0, 1.0, 1.2, 3.0, 3.1],
        rate=2,
        arrival=0.25,
        output_tokens=10,
        until=3.2,
        tau=0.5,
        alpha=1,
    )
    assert stream.ttft == pytest.approx(0.75)
    assert stream.stall_seconds == pytest.approx(0.5)
    assert stream.stall_count == 1
    assert stream.stalled
    assert stream.effective_tokens == pytest.approx(4.4)
    assert stream.weighted_tokens == pytest.approx(3.2)
    assert (stream.delivered, stream.output_tokens, stream.finished) == (5, 10, False)
    np.testing.assert_allclose(stream.tbt_seconds, [0, 0.2, 1.8, 0.1])
    assert stream.tbt.mean == pytest.approx(2.1 / 4)
    assert stream.tbt.max == pytest.approx(1.8)


@settings(deadline=None)
@given(GAPS, RATES, st.integers(0, 100))
def test_equals_the_slow_reader(
    slow_replay: Any, gaps: list[int], rate: Fraction, missing: int
) -> None:
    exact = [Fraction(sum(gaps[: i + 1]), 1000) for i in range(len(gaps))]
    length = len(gaps) + missing
    slow = slow_replay(exact, rate, length)
    end = float(exact[-1])
    stream = evaluate_stream(
        [float(t) for t in exact], rate=float(rate), arrival=0, output_tokens=length, until=end
    )
    assert stream.ttft == pytest.approx(float(exact[0]))
    assert stream.stall_seconds == pytest.approx(float(slow.stall_seconds), abs=1e-8)
    assert stream.stall_count == slow.stall_count
    assert stream.effective_tokens == pytest.approx(float(slow.effective), abs=1e-5)
    assert stream.weighted_tokens == pytest.approx(stream.effective_tokens, abs=1e-5)
    assert stream.effective_tokens <= stream.delivered + 1e-9


@settings(deadline=None)
@given(GAPS, RATES, st.integers(0, 5000))
def test_a_recording_cut_short_charges_the_wait_up_to_there(
    slow_replay: Any, gaps: list[int], rate: Fraction, wait_ms: int
) -> None:
    # One more token at the very end would have cost the same stall.
    exact = [Fraction(sum(gaps[: i + 1]), 1000) for i in range(len(gaps))]
    until = exact[-1] + Fraction(wait_ms, 1000)
    cut = evaluate_stream(
        [float(t) for t in exact],
        rate=float(rate),
        arrival=0,
        output_tokens=len(gaps) + 1,
        until=float(until),
    )
    slow = slow_replay([*exact, until], rate, len(gaps) + 1)
    assert cut.stall_seconds == pytest.approx(float(slow.stall_seconds), abs=1e-8)
    assert cut.stall_count == slow.stall_count
    assert cut.end == float(until)


def test_a_finished_stream_never_stalls_afterwards() -> None:
    # rate 1/s, done at 1 s; the recording goes on to 100 s and no reader waits
    stream = evaluate_stream([0, 1], rate=1, arrival=0, until=100)
    assert (stream.stall_seconds, stream.stall_count, stream.end) == (0, 0, 1)
    assert stream.finished


@pytest.mark.parametrize("origin", [0.0, 1.7e9])
def test_pacing_exactly_at_the_rate_is_no_stall(origin: float) -> None:
    # Tokens every 1/30 s for a reader of 30/s: late by rounding at most, at any origin of the clock
    stream = evaluate_stream(origin + np.arange(3000) / 30, rate=30, arrival=origin)
    assert stream.stall_count == 0
    assert stream.stall_seconds < 1e-5
    assert stream.effective_tokens == pytest.approx(3000)


def test_never_served() -> None:
    stream = evaluate_stream([], rate=10, arrival=2, output_tokens=50, until=9)
    assert not stream.served
    assert (stream.ttft, stream.end, stream.delivered) == (7, 9, 0)
    assert (stream.stall_seconds, stream.effective_tokens, stream.weighted_tokens) == (0, 0, 0)
    assert math.isnan(stream.tbt.mean)


def test_one_burst_is_worth_fifteen_percent() -> None:
    # L = 100 all at once, buffers 0 .. 99: 11 tokens at 1 (0 .. 10), then 0.9, 0.8 .. 0.1 = 4.5
    stream = evaluate_stream(np.zeros(100), rate=10, arrival=0)
    assert stream.effective_tokens == pytest.approx(15.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rate": 0}, "rate must be a finite number > 0, got 0.0"),
        ({"rate": math.nan}, "rate must be a finite number > 0, got nan"),
        ({"arrival": math.inf}, "arrival must be a finite number, got inf"),
        ({"arrival": 1.5}, "arrival must be at most the first token's time 1.0 s, got 1.5"),
        ({"output_tokens": -1}, "output_tokens must be a whole number >= 2, got -1"),
        ({"output_tokens": 1}, "output_tokens must be a whole number >= 2, got 1"),
        ({"output_tokens": 3}, "until must be the time .* got None, with 2 of 3 tokens"),
        ({"until": 1.5}, "until must be at least 2.0 s, the last event, got 1.5"),
        ({"until": math.nan}, "until must be a finite number, got nan"),
        ({"tau": -1}, "tau must be a finite number >= 0, got -1.0"),
        ({"alpha": 0}, "alpha must be a finite number > 0, got 0.0"),
        ({"tau1": 0.5}, "tau2 must be > tau1"),
        ({"token_times": [2, 1]}, "token_times must never decrease"),
        ({"token_times": []}, "until must be the time .* got None, with 0 of 1 tokens"),
    ],
)
def test_refuses(changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"token_times": [1.0, 2.0], "rate": 1.0, "arrival": 0.0, **changes}
    with pytest.raises(ValueError, match=message):
        evaluate_stream(arguments.pop("token_times"), **arguments)


def test_summary_by_hand() -> None:
    # 0 .. 100: percentiles are their own ranks
    summary = Summary.of(np.arange(101))
    assert (summary.count, summary.mean, summary.p50, summary.max) == (101, 50, 50, 100)
    assert (summary.p90, summary.p95, summary.p99) == (90, 95, 99)
    assert summary.p999 == pytest.approx(99.9)
    assert Summary.of([]).count == 0
    assert math.isnan(Summary.of([]).p99)
    with pytest.raises(ValueError, match="values must hold a finite number everywhere, got nan"):
        Summary.of([1, math.nan])


def test_reasoning_is_not_read():
    times = [1.0, 2.0, 9.0, 9.0, 12.0]
    whole = evaluate_stream(times, rate=1.0, arrival=0.5)
    seen = evaluate_stream(times, rate=1.0, arrival=0.5, reasoning_tokens=2)
    assert (whole.ttft, whole.ttfvt, whole.stall_seconds) == (0.5, 0.5, 7.0)
    assert (seen.ttft, seen.ttfvt, seen.delivered) == (0.5, 8.5, 5)
    assert seen.stall_seconds == 1.0, "from 11 on, when both tokens were read"
    alone = evaluate_stream(times[2:], rate=1.0, arrival=0.5)
    assert seen.effective_tokens == alone.effective_tokens
    assert seen.tbt_seconds.size == 4, "gaps of reasoning are the server's"


def test_a_stream_that_only_thought_counts_with_the_time_waited():
    cut = evaluate_stream(
        [1.0, 2.0], rate=1.0, arrival=0.0, output_tokens=9, reasoning_tokens=2, until=20.0
    )
    assert (cut.ttft, cut.ttfvt, cut.stall_seconds, cut.effective_tokens) == (1.0, 20.0, 0.0, 0.0)
    over = evaluate_stream([1.0, 2.0], rate=1.0, arrival=0.0, reasoning_tokens=2)
    assert over.ttfvt == 2.0
    with pytest.raises(ValueError, match=r"reasoning_tokens must be at most 2, .* got 3"):
        evaluate_stream([1.0, 2.0], rate=1.0, arrival=0.0, reasoning_tokens=3)
