"""Sessions, and traces put together from all of these."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import TraceConfig, TraceError, TraceRequest
from tokenflow_sgl.lab.traces import make_trace as make
from tokenflow_sgl.lab.traces.generators.arrivals import PoissonArrivals
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.generators.request_lengths import (
    FixedLengths,
    NormalLengths,
    SeparateLengths,
)
from tokenflow_sgl.lab.traces.generators.sessions import SessionConfig


def config(**changes):
    base = {
        "name": "t",
        "arrivals": PoissonArrivals(2),
        "lengths": SeparateLengths(NormalLengths(100), FixedLengths(50)),
        "requests": 300,
    }
    return TraceConfig(**{**base, **changes})


def test_sessions(is_balanced):
    sessions = SessionConfig(turns=4, think_s=6, system_tokens=32, groups=3)
    trace = make(config(sessions=sessions, rates=RateMix((10, 20)), requests=2000))
    assert is_balanced(trace)
    by_session: dict[str, list[TraceRequest]] = {}
    for request in trace.requests:
        by_session.setdefault(request.session, []).append(request)
    assert len(by_session) == 2000
    assert len(trace.requests) / 2000 == pytest.approx(4, rel=0.05)
    for turns in by_session.values():
        assert [r.turn for r in turns] == list(range(len(turns)))
        assert len({(r.arrival_s, r.rate, r.prefix) for r in turns}) == 1
        assert turns[0].think_s == 0
        for before, after in itertools.pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
    thinks = [r.think_s for r in trace.requests if r.turn]
    assert np.mean(thinks) == pytest.approx(6, rel=0.05)
    assert {r.prefix[0].id for r in trace.requests} == {0, 1, 2}
    assert {r.prefix[0].tokens for r in trace.requests} == {32}


def test_equal_configs_make_equal_traces():
    assert make(config()) == make(config())
    assert make(config()) != make(config(seed=1))


def test_rates_change_nothing_else():
    plain, mixed = make(config()), make(config(rates=RateMix((10, 20))))
    assert [(r.arrival_s, r.prompt_tokens) for r in plain.requests] == [
        (r.arrival_s, r.prompt_tokens) for r in mixed.requests
    ]
    assert {r.rate for r in mixed.requests} == {10.0, 20.0}


def test_a_duration_without_arrivals_is_refused():
    with pytest.raises(TraceError, match="nothing arrives within 1e-09 s"):
        make(config(requests=None, duration_s=1e-9))
