"""Readers, many tokens at once, against one token after the other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.traces import TraceRequest


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
        streams.arrive(index, 0.0, 0.0)
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
        assert streams.known[row] == len(times)
        if times:
            assert streams.due[row] == pytest.approx(one_by_one(None, rates[row], times))


def test_before_the_first_token_a_stream_is_due_since_its_arrival() -> None:
    streams = SimulatedStreams([TraceRequest(0.0, 5, 10)])
    streams.arrive(0, 7.0, 7.0)
    assert streams.due[0] == 7.0


@pytest.mark.parametrize("reasoning", [0, 1, 3, 4, 9])
def test_nothing_is_read_of_reasoning(reasoning) -> None:
    times = [1.0, 1.5, 2.0, 4.0, 4.1]
    requests = [
        TraceRequest(0.0, 5, 9, rate=2.0, reasoning_tokens=reasoning),
        TraceRequest(0.0, 5, 9, rate=2.0),
    ]
    whole, split = SimulatedStreams(requests), SimulatedStreams(requests)
    for streams, blocks in ((whole, [times]), (split, [times[:2], times[2:]])):
        streams.arrive(0, 0.5, 0.5)
        streams.arrive(1, 0.5, 0.5)
        for block in blocks:
            streams.deliver(np.array([0, 1]), np.array(block))
        seen = times[reasoning:]
        assert streams.visible(np.array([0])).tolist() == [len(seen)]
        assert streams.due[0] == pytest.approx(one_by_one(None, 2.0, seen) if seen else 0.5)
        assert streams.due[1] == pytest.approx(one_by_one(None, 2.0, times))
