"""Token times in blocks, and the run that they make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenflow_sgl.lab.runs.run_tables import requests_table, tokens_table
from tokenflow_sgl.lab.runs.store import Run, RunInfo
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray, SimulatedStreams
from tokenflow_sgl.lab.traces import TraceRequest

PACKED = 1 << 20
"""Tokens after which blocks are packed: many small ones would take several times their content."""


class SimulatedTokens:
    """Which streams got tokens when: each block is one token per row at each of its times."""

    def __init__(self) -> None:
        self._rows: list[IntArray] = []
        self._times: list[FloatArray] = []
        self._tokens = 0
        self._packed: list[tuple[NDArray[np.int32], FloatArray]] = []

    def deliver(self, rows: IntArray, times: FloatArray) -> None:
        """One token to each row at each time."""
        self._rows.append(rows)
        self._times.append(times)
        self._tokens += len(rows) * len(times)
        if self._tokens >= PACKED:
            self._pack()

    def table(self) -> pa.Table:
        """The tokens' table of a run."""
        if self._rows:
            self._pack()
        if not self._packed:
            return tokens_table([], [])
        owner = np.concatenate([owner for owner, _ in self._packed])
        time = np.concatenate([time for _, time in self._packed])
        self._packed = []
        # Blocks come in the order of time: a stable sort by stream is all it takes.
        order = np.argsort(owner, kind="stable")
        return tokens_table(owner[order], time[order])

    def _pack(self) -> None:
        # All blocks at once, for there are many small ones: token i of a block of n rows has the
        # row i % n and the time i // n.
        rows = np.array([len(each) for each in self._rows])
        times = np.array([len(each) for each in self._times])
        size = rows * times
        place = np.arange(self._tokens) - (size.cumsum() - size).repeat(size)
        time, row = np.divmod(place, rows.repeat(size))
        row += (rows.cumsum() - rows).repeat(size)
        time += (times.cumsum() - times).repeat(size)
        owner = np.concatenate(self._rows).astype(np.int32)
        self._packed.append((owner[row], np.concatenate(self._times)[time]))
        self._rows, self._times, self._tokens = [], [], 0


def make_run(
    info: RunInfo,
    requests: Sequence[TraceRequest],
    streams: SimulatedStreams,
    tokens: SimulatedTokens,
    ended: FloatArray,
) -> Run:
    """A run as `tokenflow replay` would have written it.

    Args:
        info: What it is of.
        requests: Of the trace.
        streams: What became of them, in their order.
        tokens: When they got tokens.
        ended: When each ended, seconds of shape (requests,); NaN: it has not.
    """
    return Run(info, _requests(requests, streams, ended), tokens.table())


def _requests(
    requests: Sequence[TraceRequest], streams: SimulatedStreams, ended: FloatArray
) -> pa.Table:
    served = ~np.isnan(ended)
    served[list(streams.refused)] = False
    cut_off = streams.answer >= streams.limit
    planned = np.array([request.arrival_s for request in requests])
    measured: dict[str, Any] = {
        "warm_up": np.zeros(len(requests), dtype=np.bool_),
        "scheduled_s": np.where(np.isnan(streams.sent), planned, streams.sent),
        "sent_s": pa.array(streams.sent, from_pandas=True),
        "ended_s": pa.array(ended, from_pandas=True),
        "prompt_tokens": streams.prompt,
        "output_tokens": streams.generated,
        "reasoning_tokens": np.minimum(streams.reasoning, streams.generated),
        "rate": streams.rate,
        "finish_reason": [
            ("length" if cut else "stop") if done else None
            for done, cut in zip(served.tolist(), cut_off.tolist(), strict=True)
        ],
        "error": [streams.refused.get(index) for index in range(len(requests))],
    }
    return requests_table(requests, measured)
