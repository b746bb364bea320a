"""Token times in blocks, and the run that they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tokenflow_sgl.replay.store import REQUEST_SCHEMA, TOKEN_SCHEMA, Run, RunInfo
from tokenflow_sgl.sim.streams import FloatArray, IntArray, Streams
from tokenflow_sgl.traces import Trace, TraceRequest


class Recording:
    """Who got tokens when: each block is one token per row at each of its times."""

    def __init__(self) -> None:
        self._rows: list[IntArray] = []
        self._times: list[FloatArray] = []

    def deliver(self, rows: IntArray, times: FloatArray) -> None:
        """One token to each row at each time."""
        self._rows.append(rows)
        self._times.append(times)

    def table(self) -> pa.Table:
        """The tokens' table of a run."""
        if not self._rows:
            return pa.table({"request": [], "time_s": []}, TOKEN_SCHEMA)
        owner = np.concatenate(
            [np.tile(r, len(t)) for r, t in zip(self._rows, self._times, strict=True)]
        ).astype(np.int32)
        time = np.concatenate(
            [np.repeat(t, len(r)) for r, t in zip(self._rows, self._times, strict=True)]
        )
        # Blocks come in the order of time: a stable sort by stream is all it takes.
        order = np.argsort(owner, kind="stable")
        return pa.table({"request": owner[order], "time_s": time[order]}, TOKEN_SCHEMA)


def make_run(
    trace: Trace,
    streams: Streams,
    recording: Recording,
    ended: FloatArray,
    *,
    name: str,
    target: Mapping[str, Any],
    options: Mapping[str, Any],
    duration_s: float,
) -> Run:
    """A run as `tokenflow replay` would have written it."""
    rows = [_row(i, request, streams, ended) for i, request in enumerate(trace.requests)]
    info = RunInfo(
        name=name,
        source="simulate",
        trace={
            "name": trace.name,
            "requests": len(trace.requests),
            "accounting": dataclasses.asdict(trace.accounting),
            "notes": list(trace.notes),
        },
        target=target,
        options=options,
        duration_s=duration_s,
        send_lag_p99_s=0.0,
    )
    return Run(info, pa.Table.from_pylist(rows, REQUEST_SCHEMA), recording.table())


def _row(
    index: int, request: TraceRequest, streams: Streams, ended: Sequence[float] | FloatArray
) -> dict[str, Any]:
    end, sent = float(ended[index]), float(streams.arrival[index])
    return {
        "index": index,
        "session": request.session,
        "turn": request.turn,
        "warm_up": False,
        "scheduled_s": request.arrival_s if np.isnan(sent) else sent,
        "sent_s": None if np.isnan(sent) else sent,
        "ended_s": None if np.isnan(end) else end,
        "prompt_tokens": request.prompt_tokens,
        "requested_tokens": request.output_tokens,
        "output_tokens": int(streams.generated[index]),
        "rate": float(streams.rate[index]),
        "ttft_slo_s": request.ttft_slo_s,
        "tbt_slo_s": request.tbt_slo_s,
        "priority": request.priority,
        "finish_reason": None if np.isnan(end) else "length",
        "error": None,
    }
