"""Spreading arrivals that a clock has rounded: order, steps, and times that are off the steps."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import Accounting, Trace, TraceError, TraceRequest
from tokenflow_sgl.lab.traces.quantised_times import spread, spread_nearly


def trace_at(*times: float) -> Trace:
    requests = tuple(TraceRequest(time, number + 1, 5) for number, time in enumerate(times))
    return Trace("t", requests, Accounting(len(times), len(times)))


def test_spread_keeps_steps_and_order():
    quantised = trace_at(*(2.0 * (n // 5) for n in range(500)))
    result = spread(quantised, 2.0, seed=3)
    times = [r.arrival_s for r in result.requests]
    assert times == sorted(times)
    assert [int(time // 2) for time in times] == [n // 5 for n in range(500)]
    assert [r.prompt_tokens for r in result.requests] == list(range(1, 501))
    with pytest.raises(TraceError, match=r"an arrival at 2\.0 s is no multiple"):
        spread(quantised, 4.0, seed=3)
    with pytest.raises(TraceError, match="spread is 0"):
        spread(quantised, 0, 1)


def test_times_off_the_steps_are_spread_until_the_next_one():
    distinct = np.array([0.0, 2.0, 4.5, 6.0, 8.0])
    times = np.repeat(distinct, 100)
    result = spread_nearly(trace_at(*times), 2.0, seed=3)
    moved = np.array([r.arrival_s for r in result.requests])
    assert (np.diff(moved) >= 0.0).all()
    ends = np.array([2.0, 4.0, 6.0, 8.0, 10.0])  # the second: a step at most
    for begin, end in zip(distinct, ends, strict=True):
        assert (moved[times == begin].min(), moved[times == begin].max()) == (
            pytest.approx(begin, abs=0.2),
            pytest.approx(end, abs=0.2),
        )
    assert "nearly quantised to 2 s" in result.notes[-1]


def test_times_on_the_steps_are_spread_as_before():
    quantised = trace_at(*(2.0 * (n // 5) for n in range(50)))
    assert spread_nearly(quantised, 2.0, seed=3) == spread(quantised, 2.0, seed=3)
