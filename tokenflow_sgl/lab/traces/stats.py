"""Figures that describe a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tokenflow_sgl.lab.traces.parameters import FloatArray
from tokenflow_sgl.lab.traces.request import Trace

BINS_S = (1, 10, 60)
"""Bins of the index of dispersion, seconds."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles and extremes of a quantity."""

    mean: float
    p50: float
    p90: float
    p99: float
    min: float
    max: float

    @classmethod
    def of(cls, values: ArrayLike) -> Distribution:
        """Describe at least one value."""
        array = np.asarray(values, float)
        p50, p90, p99 = np.percentile(array, (50, 90, 99))
        low, high = array.min(), array.max()
        return cls(*(float(value) for value in (array.mean(), p50, p90, p99, low, high)))


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Figures of a trace. Arrivals are those of independent requests and of sessions' first turns.

    Attributes:
        requests: Number of requests.
        arrivals: Number of arrivals.
        span_s: Seconds from the first to the last arrival.
        arrivals_per_s: Arrivals after the first, per second of the span; None: they come at once.
        interarrival_cv: Standard deviation of the gaps over their mean (Poisson: 1); None: fewer
            than two gaps, or all at once.
        dispersion: Variance over mean of the arrivals per bin, by the bin's seconds (Poisson: 1);
            None: fewer than ten whole bins.
        prompt_tokens: Lengths of prompts.
        output_tokens: Lengths of answers.
        limit_tokens: Output tokens that clients allow; None: the trace does not say for any.
        reasoning_tokens: Output tokens that are thinking, of the requests that think; None: none.
        sessions: Number of sessions.
        turns: Turns per session; None: no sessions.
        think_s: Think times before later turns, seconds; None: none.
        shared_prefix: Part of all prompt tokens that lie in blocks seen before, in an unbroken run
            from the prompt's start; None: the trace has no blocks. What a session repeats of
            itself counts only if the trace has blocks for it.
        reader_rate: Rates of readers, tokens/s; None: the trace does not say for every request.
        offered_tokens_per_s: Output tokens per second of the span; None: all arrive at once.
        peak_reading_per_s: Largest sum of the rates of simultaneous readers, tokens/s,
            if each request were answered at once at its reader's rate; None as `reader_rate`, and
            with sessions, whose later turns are sent when the server has answered.
        priority_updates: Number of changes of priority.
    """

    requests: int
    arrivals: int
    span_s: float
    arrivals_per_s: float | None
    interarrival_cv: float | None
    dispersion: Mapping[int, float | None]
    prompt_tokens: Distribution
    output_tokens: Distribution
    limit_tokens: Distribution | None
    reasoning_tokens: Distribution | None
    sessions: int
    turns: Distribution | None
    think_s: Distribution | None
    shared_prefix: float | None
    reader_rate: Distribution | None
    offered_tokens_per_s: float | None
    peak_reading_per_s: float | None
    priority_updates: int


def summarise(trace: Trace) -> TraceStats:
    """Compute the figures of a trace with at least one request."""
    requests = trace.requests
    times = arrival_times(trace)
    span = float(times[-1] - times[0])
    outputs = np.array([request.output_tokens for request in requests])
    turns = Counter(r.session for r in requests if r.session is not None)
    limits = [request.limit_tokens for request in requests if request.limit_tokens is not None]
    reasoning = [request.reasoning_tokens for request in requests if request.reasoning_tokens]
    thinks = [request.think_s for request in requests if request.turn]
    rates = [request.rate for request in requests if request.rate is not None]
    complete = len(rates) == len(requests)
    return TraceStats(
        requests=len(requests),
        arrivals=len(times),
        span_s=span,
        arrivals_per_s=(len(times) - 1) / span if span else None,
        interarrival_cv=_cv(times),
        dispersion={bin_s: _dispersion(times, bin_s) for bin_s in BINS_S},
        prompt_tokens=Distribution.of([request.prompt_tokens for request in requests]),
        output_tokens=Distribution.of(outputs),
        limit_tokens=Distribution.of(limits) if limits else None,
        reasoning_tokens=Distribution.of(reasoning) if reasoning else None,
        sessions=len(turns),
        turns=Distribution.of(list(turns.values())) if turns else None,
        think_s=Distribution.of(thinks) if thinks else None,
        shared_prefix=_shared_prefix(trace),
        reader_rate=Distribution.of(rates) if complete else None,
        offered_tokens_per_s=float(outputs.sum()) / span if span else None,
        peak_reading_per_s=(
            _peak_reading(trace, np.array(rates)) if complete and not turns else None
        ),
        priority_updates=len(trace.priority_updates),
    )


def arrival_times(trace: Trace) -> FloatArray:
    """When independent requests and sessions arrive, seconds, sorted."""
    return np.array([request.arrival_s for request in trace.requests if not request.turn])


def _cv(times: FloatArray) -> float | None:
    gaps = np.diff(times)
    if len(gaps) < 2 or not gaps.any():
        return None
    return float(gaps.std() / gaps.mean())


def _dispersion(times: FloatArray, bin_s: float) -> float | None:
    bins = int((times[-1] - times[0]) / bin_s)
    if bins < 10:
        return None
    # The last, incomplete bin is left out. Only bins with arrivals are held: a trace with a time
    # from another clock has more bins than memory.
    place = np.floor((times - times[0]) / bin_s)
    _, counts = np.unique(place[place < bins], return_counts=True)
    mean = float(counts.sum()) / bins
    empty = bins - counts.size
    variance = (float(((counts - mean) ** 2).sum()) + empty * mean**2) / bins
    return variance / mean


def _shared_prefix(trace: Trace) -> float | None:
    seen: set[int] = set()
    shared = total = 0
    for request in trace.requests:
        total += request.prompt_tokens
        unbroken = True
        for block in request.prefix:
            unbroken = unbroken and block.id in seen
            shared += block.tokens if unbroken else 0
        seen.update(block.id for block in request.prefix)
    return shared / total if seen else None


def _peak_reading(trace: Trace, rates: FloatArray) -> float:
    starts = np.array([request.arrival_s for request in trace.requests])
    outputs = np.array([request.output_tokens for request in trace.requests])
    times = np.concatenate([starts, starts + outputs / rates])
    changes = np.concatenate([rates, -rates])
    # At equal times, readers that end come before readers that begin.
    order = np.lexsort((changes, times))
    return float(np.cumsum(changes[order]).max())
