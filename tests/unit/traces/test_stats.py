from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import Accounting, PrefixBlock, Trace, TraceRequest, summarise
from tokenflow_sgl.lab.traces.stats import Distribution


def trace(*requests):
    return Trace("t", requests, Accounting(len(requests), len(requests)))


def block(*ids, tokens=10):
    return tuple(PrefixBlock(i, tokens) for i in ids)


def test_limits_and_thinking_count_where_they_are_stated():
    plain = summarise(trace(TraceRequest(0.0, 10, 10), TraceRequest(1.0, 10, 10)))
    assert (plain.limit_tokens, plain.reasoning_tokens) == (None, None)
    figures = summarise(
        trace(
            TraceRequest(0.0, 10, 10, limit_tokens=100),
            TraceRequest(1.0, 10, 10, reasoning_tokens=8),
        )
    )
    assert figures.limit_tokens.mean == 100
    assert figures.reasoning_tokens.mean == 8


def test_by_hand():
    figures = summarise(
        trace(
            TraceRequest(1.0, 100, 10, rate=5.0, session="a"),
            TraceRequest(1.5, 200, 20, rate=5.0, session="a", turn=1, think_s=3.0),
            TraceRequest(2.0, 300, 30, rate=10.0),
            TraceRequest(5.0, 400, 40, rate=10.0),
        )
    )
    assert figures.requests == 4
    assert figures.arrivals == 3  # the second turn does not arrive, it follows
    assert figures.span_s == 4.0
    assert figures.arrivals_per_s == 0.5
    assert figures.interarrival_cv == pytest.approx(0.5)  # gaps 1 and 3
    assert figures.prompt_tokens.mean == 250
    assert figures.prompt_tokens.p50 == 250
    assert figures.output_tokens.max == 40
    assert figures.sessions == 1
    assert figures.turns.mean == 2
    assert figures.think_s.mean == 3.0
    assert figures.reader_rate.mean == 7.5
    assert figures.offered_tokens_per_s == 25.0
    assert figures.peak_reading_per_s is None  # sessions
    assert figures.shared_prefix is None
    assert figures.dispersion == {1: None, 10: None, 60: None}


def test_peak_reading_by_hand():
    figures = summarise(
        trace(
            TraceRequest(0.0, 1, 10, rate=5.0),  # reads until 2
            TraceRequest(1.0, 1, 10, rate=10.0),  # until 2
            TraceRequest(2.0, 1, 10, rate=12.0),  # until 2.83; the others have left
        )
    )
    assert figures.peak_reading_per_s == 15.0


def test_all_at_once():
    figures = summarise(trace(*(TraceRequest(3.0, 5, 5) for _ in range(4))))
    assert figures.arrivals_per_s is None
    assert figures.interarrival_cv is None
    assert figures.offered_tokens_per_s is None
    assert figures.reader_rate is None
    assert figures.span_s == 0


def test_shared_prefix_counts_unbroken_runs_only():
    figures = summarise(
        trace(
            TraceRequest(0, 30, 1, prefix=block(1, 2)),
            TraceRequest(1, 30, 1, prefix=block(1, 2, 3)),  # 20 seen
            TraceRequest(2, 40, 1, prefix=block(4, 1, 2)),  # 4 is new: the rest cannot be shared
        )
    )
    assert figures.shared_prefix == 20 / 100


def test_dispersion():
    rng = np.random.default_rng(0)
    times = np.sort(rng.uniform(0, 3000, 15_000))
    poisson = summarise(trace(*(TraceRequest(t, 1, 1) for t in times.tolist()))).dispersion
    assert poisson[1] == pytest.approx(1, abs=0.1)
    assert poisson[10] == pytest.approx(1, abs=0.25)
    clock = summarise(trace(*(TraceRequest(n / 5, 1, 1) for n in range(5000)))).dispersion
    assert clock[1] == pytest.approx(0, abs=0.01)
    batches = summarise(trace(*(TraceRequest(n // 30 * 10.0, 1, 1) for n in range(3000))))
    # 30 in every tenth bin of a second: variance 30^2 / 10 - 3^2 = 81, mean 3
    assert batches.dispersion[1] == pytest.approx(27, rel=0.01)
    assert batches.dispersion[10] == pytest.approx(0, abs=1e-9)


def test_distribution():
    assert Distribution.of([1, 2, 3]) == Distribution(2.0, 2.0, 2.8, 2.98, 1.0, 3.0)


def test_a_time_from_another_clock_costs_no_memory():
    times = [*range(20), 1.7e12]
    tracemalloc.start()
    figures = summarise(trace(*(TraceRequest(float(time), 10, 10) for time in times)))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000
    # Of n arrivals alone in their bins of very many: each is off the mean, near 0, by 1.
    assert figures.dispersion[1] == pytest.approx(1.0)
    assert figures.dispersion[10] == pytest.approx(10.0)


@pytest.mark.parametrize("bin_s", [1, 10])
def test_dispersion_is_variance_over_mean_of_all_bins(bin_s):
    times = np.sort(np.random.default_rng(1).uniform(0.0, 300.0, 100))
    figures = summarise(trace(*(TraceRequest(time, 10, 10) for time in times.tolist())))
    bins = int((times[-1] - times[0]) / bin_s)
    edges = times[0] + bin_s * np.arange(bins + 1)
    counts, _ = np.histogram(times[times < edges[-1]], edges)
    assert figures.dispersion[bin_s] == pytest.approx(counts.var() / counts.mean(), rel=1e-12)
