"""How readers fared over time, for plots: buffers, stalls, single streams.

Judged requests go in; arrays of a few hundred columns come out, whatever the number of tokens.
Values at a moment are exact (looked up, not interpolated); cells of the map are shares of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenflow_sgl.lab.report.judged import Judged
from tokenflow_sgl.lab.runs.recording import FloatArray, IntArray
from tokenflow_sgl.qos import NOTICEABLE_STALL, Playback, play

BAND_PERCENTILES = (5.0, 25.0, 50.0, 75.0, 95.0)
"""Percentiles of the readers' buffers that a plot of bands shows."""


@dataclass(frozen=True, slots=True, eq=False)
class StallMap:
    """Shares of time by request (rows) and time (columns), each of shape (rows, columns).

    Attributes:
        waiting: Due, and no first visible token yet.
        reading: Reading, with output still due or unread.
        stalled: Standing still.
        edges: Times of the columns' edges, seconds.
        per_row: Requests that share a row (the last row may have fewer).
    """

    waiting: FloatArray
    reading: FloatArray
    stalled: FloatArray
    edges: FloatArray
    per_row: int


class Reading:
    """The playback of every stream of a run."""

    def __init__(self, judged: Judged) -> None:
        self.judged = judged
        recording = judged.recording
        self.playbacks: list[Playback] = [
            play(recording.visible(row), float(recording.rate[row])) for row in range(len(judged))
        ]

    @cached_property
    def start(self) -> float:
        """First arrival, seconds; 0 without requests."""
        return float(min((stream.arrival for stream in self.judged.streams), default=0.0))

    @cached_property
    def end(self) -> float:
        """Last end, seconds; a second after the start where nothing lasted."""
        end = float(max((stream.end for stream in self.judged.streams), default=0.0))
        return end if end > self.start else self.start + 1.0

    def unread_seconds(self, grid: FloatArray) -> FloatArray:
        """Unread tokens in seconds of reading, shape (requests, grid).

        NaN where the reader has not begun or no output is due any more; 0 while it stands still.
        """
        result = np.full((len(self.judged), grid.size), np.nan)
        recording = self.judged.recording
        for row, playback in enumerate(self.playbacks):
            times = recording.visible(row)
            if not times.size:
                continue
            # The buffer is empty one period after the reader begins its last token.
            here = np.searchsorted(times, grid, "right")
            begun = (here > 0) & (grid < self.judged.streams[row].end)
            dry = playback.consumed[here[begun] - 1] + 1.0 / recording.rate[row]
            result[row, begun] = np.maximum(dry - grid[begun], 0.0)
        return result

    def buffer_bands(self, grid: FloatArray) -> tuple[FloatArray, IntArray]:
        """`BAND_PERCENTILES` of the unread seconds, shape (5, grid), and of how many readers."""
        unread = np.sort(self.unread_seconds(grid), axis=0)
        readers = np.sum(~np.isnan(unread), axis=0)
        bands = np.full((len(BAND_PERCENTILES), grid.size), np.nan)
        some = readers > 0
        columns = np.flatnonzero(some)
        for number, percent in enumerate(BAND_PERCENTILES):
            position = (readers[some] - 1) * percent / 100
            low = np.floor(position).astype(np.int64)
            high = np.minimum(low + 1, readers[some] - 1)
            below, above = unread[low, columns], unread[high, columns]
            bands[number, some] = below + (above - below) * (position - low)
        return bands, readers

    def stall_map(self, columns: int = 400, rows: int = 300) -> StallMap:
        """Where readers waited, read and stood still; many requests share a row evenly."""
        count = len(self.judged)
        per_row = max(1, -(-count // rows))
        height = max(1, -(-count // per_row))
        edges = np.linspace(self.start, self.end, columns + 1)
        maps = np.zeros((3, height, columns))
        for row, playback in enumerate(self.playbacks):
            stream, at = self.judged.streams[row], row // per_row
            first = min(stream.arrival + stream.ttfvt, stream.end)  # or its failure
            maps[0, at] += _overlap(edges, np.array([stream.arrival]), np.array([first]))
            if not self.judged.seen[row]:
                continue
            stalled = playback.stalls > 0
            until = playback.consumed[stalled]
            since = until - playback.stalls[stalled]
            done = float(playback.consumed[-1]) + 1.0 / stream.rate
            if stream.end > done:  # broke off while its reader stood waiting
                since, until = np.append(since, done), np.append(until, stream.end)
            maps[2, at] += _overlap(edges, since, until)
            present = _overlap(edges, np.array([first]), np.array([max(done, stream.end)]))
            maps[1, at] += present
        maps[1] = np.maximum(maps[1] - maps[2], 0.0)
        shared = np.full(height, float(per_row))
        shared[-1] = max(count - per_row * (height - 1), 1)
        maps /= shared[None, :, None]
        return StallMap(maps[0], maps[1], maps[2], edges, per_row)

    def curves(self, row: int, points: int = 600) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Times, tokens received by then and tokens begun by then, of one stream."""
        times, playback = self.judged.recording.visible(row), self.playbacks[row]
        arrival = self.judged.streams[row].arrival
        if not times.size:
            grid = np.array([arrival, self.judged.streams[row].end])
            return grid, np.zeros(2), np.zeros(2)
        last = max(float(playback.consumed[-1]), self.judged.streams[row].end)
        grid = np.linspace(arrival, last, points)
        received = np.searchsorted(times, grid, "right").astype(np.float64)
        taken = np.searchsorted(playback.consumed, grid, "right").astype(np.float64)
        return grid, received, taken


def pick_streams(runs: Sequence[Judged]) -> list[tuple[str, int, int]]:
    """Streams worth a look, as title, run and row.

    The longest stalls of all runs, if a reader could notice them; the longest and the median TTFT
    of the first.
    """
    picked: list[tuple[str, int, int]] = []
    longest = NOTICEABLE_STALL
    for run, judged in enumerate(runs):
        for row, stream in enumerate(judged.streams):
            if stream.stall_seconds > longest:
                longest = stream.stall_seconds
                picked = [("longest stalls", run, row)]
    ttft = runs[0].ttft
    measured = np.count_nonzero(~np.isnan(ttft))
    if measured:
        middle = int(np.argsort(ttft, kind="stable")[(measured - 1) // 2])
        picked += [("longest TTFT", 0, int(np.nanargmax(ttft))), ("median TTFT", 0, middle)]
    return picked


def worst_rows(judged: Judged, count: int) -> list[int]:
    """Rows with the longest waiting, for the first visible token and in stalls together."""
    waited = judged.column(lambda stream: stream.ttfvt + stream.stall_seconds)
    return [int(row) for row in np.argsort(-waited, kind="stable")[:count]]


def _overlap(edges: FloatArray, since: FloatArray, until: FloatArray) -> FloatArray:
    """Share of each column that lies in the intervals (sorted, apart), shape (columns,)."""
    if not since.size:
        return np.zeros(edges.size - 1)
    knots = np.stack((since, until), axis=1).ravel()
    total = np.repeat(np.concatenate(([0.0], np.cumsum(until - since))), 2)[1:-1]
    covered = np.interp(edges, knots, total)
    return np.asarray(np.diff(covered) / np.diff(edges))
