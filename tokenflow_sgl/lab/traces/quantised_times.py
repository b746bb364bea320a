"""Arrivals that a clock has rounded to steps, spread over each step so that none is a batch.

Replayed as they are, such times send a batch every step.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tokenflow_sgl.lab.traces.parameters import FloatArray, IntArray, stream
from tokenflow_sgl.lab.traces.request import Trace, TraceError

_TOLERANCE = 0.01
"""Share of a step by which an arrival may be off its multiples."""


def spread(trace: Trace, step_s: float, seed: int) -> Trace:
    """Spread arrivals that are quantised to multiples of `step_s` uniformly over the step.

    Within a step the order stays. Later turns of sessions, whose arrival does not count, move with
    the rest.

    Raises:
        TraceError: `step_s` is not above 0, or an arrival is further than 1 % of it from its
            multiples: the trace is not quantised so.
    """
    if not 0 < step_s < math.inf:
        raise TraceError(f"spread is {step_s!r}; allowed is a number above 0")
    arrivals = _arrivals(trace)
    steps, off = _off(arrivals, step_s)
    if off.size and off.max() > _TOLERANCE:
        worst = float(arrivals[int(off.argmax())])
        raise TraceError(
            f"spread is {step_s:g}, but an arrival at {worst!r} s is no multiple of it; only "
            "quantised times can be spread"
        )
    note = f"Arrivals quantised to {step_s:g} s were spread uniformly over each step, seed {seed}."
    offsets = _offsets(steps, seed)
    return _moved(trace, (steps + offsets) * step_s, note)


def spread_nearly(trace: Trace, step_s: float, seed: int) -> Trace:
    """Spread arrivals like `spread`; where some are off the steps, over the times that there are.

    Each is spread until the next one, for `step_s` at most. That is for files in which nearly all
    times are quantised, or whose step is no whole number of the file's unit.
    """
    arrivals = _arrivals(trace)
    if not (_off(arrivals, step_s)[1] > _TOLERANCE).any():
        return spread(trace, step_s, seed)
    distinct, place = np.unique(arrivals, return_inverse=True)
    widths = np.minimum(np.append(np.diff(distinct), step_s), step_s)
    note = (
        f"Arrivals nearly quantised to {step_s:g} s were spread uniformly until the next time in "
        f"the file, seed {seed}."
    )
    return _moved(trace, distinct[place] + _offsets(place, seed) * widths[place], note)


def _arrivals(trace: Trace) -> FloatArray:
    return np.array([request.arrival_s for request in trace.requests])


def _off(arrivals: FloatArray, step_s: float) -> tuple[FloatArray, FloatArray]:
    """The nearest multiple of each arrival, and by what share of a step it is off."""
    steps = np.rint(arrivals / step_s)
    return steps, np.abs(arrivals / step_s - steps)


def _offsets(steps: FloatArray | IntArray, seed: int) -> FloatArray:
    """A share of its step for each arrival, ascending within a step."""
    drawn = stream(seed, "spread").random(steps.size)
    # Sorting by step, then by offset, gives each step its offsets in ascending order.
    return np.asarray(drawn[np.lexsort((drawn, steps))])


def _moved(trace: Trace, times: FloatArray, note: str) -> Trace:
    moved = zip(trace.requests, np.round(times, 6).tolist(), strict=True)
    return replace(
        trace,
        requests=tuple(replace(request, arrival_s=time) for request, time in moved),
        notes=(*trace.notes, note),
    )
