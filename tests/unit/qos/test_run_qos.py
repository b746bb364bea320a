from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.qos import StreamQoS, evaluate_run, evaluate_stream

PENALTIES = st.floats(0, 100)


def two_streams() -> list[StreamQoS]:
    return [
        # request at 0, rate 1/s, tokens at 1, 2, 5: read 1, 2, then a stall of 2 s; TTFT 1
        evaluate_stream([1, 2, 5], rate=1, arrival=0),
        # request at 2, rate 1/s, tokens at 5, 6, 7, 8, no stall; TTFT 3
        evaluate_stream([5, 6, 7, 8], rate=1, arrival=2),
    ]


def test_eq2_by_hand() -> None:
    # T = 8 - 0. All 7 tokens meet an empty buffer, so weigh 1.
    # QoS with lambda = 0.5, mu = 0.25: (7 - 0.5 * (1 + 3) - 0.25 * 2) / 8 = 4.5 / 8
    run = evaluate_run(two_streams(), ttft_penalty=0.5, stall_penalty=0.25)
    assert run.duration == 8
    assert run.qos == pytest.approx(4.5 / 8)
    assert run.token_throughput == run.effective_throughput == pytest.approx(7 / 8)
    assert (run.ttft.mean, run.ttft.p50, run.ttft.max) == (2, 2, 3)
    assert run.ttft.p99 == pytest.approx(2.98)
    assert (run.stall_seconds, run.stall_count, run.stalled_share) == (2, 1, 0.5)
    assert (run.streams, run.unserved, run.unfinished) == (2, 0, 0)
    assert run.tbt.count == 5
    assert run.tbt.max == 3
    assert (run.ttft_penalty, run.stall_penalty) == (0.5, 0.25)


def test_dropping_a_request_does_not_improve_the_run() -> None:
    # A third request, at 0 and never served up to 10: TTFT 10 (a lower bound), and T = 10.
    dropped = evaluate_stream([], rate=1, arrival=0, output_tokens=5, until=10)
    run = evaluate_run([*two_streams(), dropped], ttft_penalty=0.5, stall_penalty=0)
    assert (run.unserved, run.unfinished, run.duration) == (1, 1, 10)
    assert run.ttft.max == 10
    assert run.qos == pytest.approx((7 - 0.5 * 14) / 10)


@settings(deadline=None)
@given(PENALTIES, PENALTIES, PENALTIES)
def test_qos_never_grows_with_a_penalty(lam: float, mu: float, more: float) -> None:
    streams = two_streams()

    def qos(lam: float, mu: float) -> float:
        return evaluate_run(streams, ttft_penalty=lam, stall_penalty=mu).qos

    assert qos(lam + more, mu) <= qos(lam, mu) + 1e-9
    assert qos(lam, mu + more) <= qos(lam, mu) + 1e-9
    assert qos(0, 0) == pytest.approx(7 / 8)


@pytest.mark.parametrize(
    ("lam", "mu", "message"),
    [
        (-1, 0, "ttft_penalty must be a finite number >= 0, got -1.0"),
        (0, math.nan, "stall_penalty must be a finite number >= 0, got nan"),
    ],
)
def test_refuses_penalties(lam: float, mu: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        evaluate_run(two_streams(), ttft_penalty=lam, stall_penalty=mu)


def test_refuses_runs_without_streams_or_duration() -> None:
    with pytest.raises(ValueError, match="streams must hold at least one stream, got none"):
        evaluate_run([], ttft_penalty=0, stall_penalty=0)
    instant = evaluate_stream([3.0], rate=1, arrival=3.0)
    with pytest.raises(ValueError, match=r"must span a duration > 0 s .* got 0.0"):
        evaluate_run([instant], ttft_penalty=0, stall_penalty=0)
