"""Resampled requests: every figure again, over many sets of requests drawn with replacement.

A set is a row of request numbers; figures come out as one number per set. The set
`0, 1, .. n-1` gives the run's own figures, which the tests hold against `run_figures`.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tokenflow_sgl.lab.report.judged import Judged
from tokenflow_sgl.lab.report.report_options import Options
from tokenflow_sgl.lab.runs.recording import FloatArray, IntArray

_MOST_VALUES = 4096


class Columns:
    """What the figures of one run are made of, per request. Build once, resample often."""

    def __init__(self, judged: Judged, options: Options) -> None:
        self.options = options
        recording, streams = judged.recording, judged.streams
        self.values: dict[str, FloatArray] = {
            "arrival": judged.column(lambda stream: stream.arrival),
            "end": judged.column(lambda stream: stream.end),
            "delivered": judged.column(lambda stream: stream.delivered),
            "effective": judged.column(lambda stream: stream.effective_tokens),
            "weighted": judged.column(lambda stream: stream.weighted_tokens),
            "ttft": judged.ttft,
            "awaited": judged.column(lambda stream: stream.ttft),  # the same without gaps
            "ttfvt": judged.ttfvt if judged.thinks.any() else np.full(len(judged), np.nan),
            "ttft_sent": judged.ttft_sent,
            "tpot": judged.tpot,
            "e2e": judged.e2e,
            "e2e_per_token": judged.e2e_per_token,
            "stall": judged.column(lambda stream: stream.stall_seconds),
            "stall_count": judged.column(lambda stream: stream.stall_count),
            "stalled": judged.column(lambda stream: stream.stalled),
            "qoe": judged.qoe,
            "completed": judged.completed.astype(np.float64),
            "reading": recording.visible_counts / recording.rate,
            "has_ttft_slo": judged.has_ttft_slo.astype(np.float64),
            "has_tbt_slo": judged.has_tbt_slo.astype(np.float64),
            "has_slo": (judged.has_ttft_slo | judged.has_tbt_slo).astype(np.float64),
            "met_ttft": (judged.met_ttft & judged.has_ttft_slo).astype(np.float64),
            "met_tbt": (judged.met_tbt & judged.has_tbt_slo).astype(np.float64),
            "good": judged.good.astype(np.float64),
            "good_slo": (judged.good & (judged.has_ttft_slo | judged.has_tbt_slo)).astype(float),
            "gaps_slo": judged.gaps.astype(np.float64),
            "gaps_met": judged.gaps_met.astype(np.float64),
            "gaps": judged.column(lambda stream: stream.tbt_seconds.size),
            "gap_seconds": judged.column(lambda stream: float(stream.tbt_seconds.sum())),
        }
        gaps = [stream.tbt_seconds for stream in streams]
        self.gap_values = _gap_values(np.concatenate([*gaps, np.empty(0)]))
        size = max(self.gap_values.size, 1)
        self.gap_counts = np.zeros((len(streams), size), dtype=np.float32)
        """How many gaps each request has of each of the values (rounded up to it)."""
        for row, own in enumerate(gaps):
            at = np.searchsorted(self.gap_values, own, "left")
            self.gap_counts[row] = np.bincount(at, minlength=size)


class Sample:
    """Sets of requests of one run, shape (sets, n): figures have shape (sets,)."""

    def __init__(self, columns: Columns, rows: IntArray) -> None:
        self._columns = columns
        self._rows = rows
        self._sorted: dict[str, FloatArray] = {}
        self.options = columns.options

    def sum(self, name: str) -> FloatArray:
        """Sum of a column without gaps."""
        return np.asarray(self._columns.values[name][self._rows].sum(axis=1))

    def share(self, part: str, whole: str) -> FloatArray:
        """Sum of one column over the sum of another; NaN over nothing."""
        return divide(self.sum(part), self.sum(whole))

    def mean(self, name: str) -> FloatArray:
        """Mean of a column, NaN left out."""
        ordered = self._ordered(name)
        return divide(np.nansum(ordered, axis=1), np.sum(~np.isnan(ordered), axis=1))

    def percentile(self, name: str, percent: float) -> FloatArray:
        """Percentile of a column, NaN left out, interpolated as numpy does."""
        ordered = self._ordered(name)
        count = np.sum(~np.isnan(ordered), axis=1)
        position = np.maximum(count - 1, 0) * (percent / 100)
        low = np.floor(position).astype(np.int64)
        high = np.minimum(low + 1, np.maximum(count - 1, 0))
        at = np.arange(len(ordered))
        below, above = ordered[at, low], ordered[at, high]
        return np.asarray(below + (above - below) * (position - low))

    def rate(self, name: str) -> FloatArray:
        """Sum of a column per second of the set's own makespan."""
        return divide(self.sum(name), self.makespan)

    @cached_property
    def makespan(self) -> FloatArray:
        """From the set's first arrival to its last end, seconds."""
        values = self._columns.values
        ends, arrivals = values["end"][self._rows], values["arrival"][self._rows]
        return np.asarray(ends.max(axis=1) - arrivals.min(axis=1))

    def gap_percentile(self, percent: float) -> FloatArray:
        """Percentile of the pooled gaps, seconds, interpolated as numpy does."""
        total = self._gap_ranks[:, -1]
        position = np.maximum(total - 1, 0) * (percent / 100)
        low = np.floor(position)
        below, above = self._gap_at(low), self._gap_at(np.minimum(low + 1, total - 1))
        return np.where(total > 0, below + (above - below) * (position - low), np.nan)

    def _gap_at(self, rank: FloatArray) -> FloatArray:
        """The gap of that rank from 0, per set."""
        if not self._columns.gap_values.size:
            return np.full(rank.shape, np.nan)
        found = np.argmax(self._gap_ranks > rank[:, None], axis=1)
        return np.asarray(self._columns.gap_values[found])

    @cached_property
    def _gap_ranks(self) -> FloatArray:
        sets, size = self._rows.shape
        flat = self._rows + np.arange(sets)[:, None] * size
        times_drawn = np.bincount(flat.ravel(), minlength=sets * size).reshape(sets, size)
        counts = times_drawn.astype(np.float32) @ self._columns.gap_counts
        return np.cumsum(counts, axis=1, dtype=np.float64)

    def _ordered(self, name: str) -> FloatArray:
        if name not in self._sorted:
            self._sorted[name] = np.sort(self._columns.values[name][self._rows], axis=1)
        return self._sorted[name]


def _gap_values(pooled: FloatArray) -> FloatArray:
    """Every value that occurs; of very many, steps of equal numbers, finer towards the top."""
    values = np.unique(pooled)
    if values.size <= _MOST_VALUES:
        return values
    even = np.linspace(0, 1, _MOST_VALUES * 3 // 4)
    top = 1 - np.geomspace(1e-7, 1e-2, _MOST_VALUES // 4)
    ranks = np.concatenate((even, top))
    return np.unique(np.quantile(pooled, ranks, method="higher"))


def divide(part: FloatArray, whole: FloatArray) -> FloatArray:
    """Divide set by set; NaN where there is nothing to divide by."""
    result = np.full(part.shape, np.nan)
    np.divide(part, whole, out=result, where=whole > 0)
    return result
