"""What a run's server had to do over time, for plots: queue, running streams, tokens, goodput."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.report.judged import Judged
from tokenflow_sgl.lab.runs.recording import FloatArray

_NICE = (1.0, 2.0, 5.0)


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Requests by the window in which they were due; rates in requests/s, shape (windows,).

    Attributes:
        edges: Edges of the windows, seconds, shape (windows + 1,).
        offered: Requests due.
        good: Of these, the ones that completed within all their objectives.
    """

    edges: FloatArray
    offered: FloatArray
    good: FloatArray


def population(judged: Judged, grid: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Requests due and without a first token, and streams begun and not ended, at each moment."""
    due = judged.column(lambda stream: stream.arrival)
    end = judged.column(lambda stream: stream.end)
    begun = np.minimum(due + judged.column(lambda stream: stream.ttft), end)  # or failed
    ended = end[judged.served]
    waiting = _up_to(due, grid) - _up_to(begun, grid)
    return waiting, _up_to(begun[judged.served], grid) - _up_to(ended, grid)


def token_rate(judged: Judged, edges: FloatArray) -> FloatArray:
    """Tokens/s that arrived in each window, shape (windows,)."""
    counts, _ = np.histogram(judged.recording.times, edges)
    return np.asarray(counts / np.diff(edges))


def windows(judged: Judged, edges: FloatArray) -> Windows:
    """Offered load and goodput by window."""
    due = judged.recording.scheduled
    offered, _ = np.histogram(due[judged.recording.due], edges)
    good, _ = np.histogram(due[judged.good], edges)
    return Windows(edges, offered / np.diff(edges), good / np.diff(edges))


def window_edges(start: float, end: float, about: int) -> FloatArray:
    """Cut a stretch of time into about that many windows of a round length."""
    length = (end - start) / about
    unit = 10.0 ** math.floor(math.log10(length))
    length = next((unit * nice for nice in _NICE if unit * nice >= length), unit * 10)
    count = math.ceil((end - start) / length)
    return np.asarray(start + length * np.arange(count + 1), dtype=np.float64)


def distribution(
    values: FloatArray, total: int, at: FloatArray | None = None
) -> tuple[FloatArray, FloatArray]:
    """Cumulative distribution as (value, share of `total` at most that).

    Args:
        values: Measurements.
        total: What they are a share of; more than there are where some were never measured.
        at: Where to read it; default: at each value.
    """
    ordered = np.sort(values)
    if at is None:
        return ordered, np.arange(1, ordered.size + 1) / max(total, 1)
    return at, np.searchsorted(ordered, at, "right") / max(total, 1)


def _up_to(events: FloatArray, grid: FloatArray) -> FloatArray:
    return np.searchsorted(np.sort(events), grid, "right").astype(np.float64)
