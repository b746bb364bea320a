"""Readers, many tokens at once, against one token after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.traces import TraceRequest


def one_by_one(due: float | None, rate: float, times: list[float]) -> float:
    for time in times:
        due = time + 1 / rate if due is None else max(due, time) + 1 / rate
    assert due is not None
    return due


@settings(max_examples=200, deadline=None)
@given(
    rates=st.lists(st.floats(0.5, 100.0), min_size=1, max_size=4),
    blocks=st.lists(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=6), min_size=1, max_size=6),
    data=st.data(),
)
def test_due_times(rates, blocks, data) -> None:
    streams = SimulatedStreams([TraceRequest(0.0, 5, 1000, rate=rate) for rate in rates])
    for index in range(len(rates)):
        streams.arrive(index, 0.0)
    seen: list[list[float]] = [[] for _ in rates]
    now = 0.0
    for gaps in blocks:
        times = (now + np.cumsum(gaps)).tolist()
        now = times[-1]
        rows = sorted(data.draw(st.sets(st.integers(0, len(rates) - 1), min_size=1)))
        streams.deliver(np.array(rows), np.array(times))
        for row in rows:
            seen[row] += times
    for row, times in enumerate(seen):
        assert streams.generated[row] == len(times)
        if times:
            assert streams.due[row] == pytest.approx(one_by_one(None, rates[row], times))


def test_before_the_first_token_a_stream_is_due_since_its_arrival() -> None:
    streams = SimulatedStreams([TraceRequest(0.0, 5, 10)])
    streams.arrive(0, 7.0)
    assert streams.due[0] == 7.0
