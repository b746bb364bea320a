"""What became of every request of a replay, and the two tables of the run made of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenflow_sgl.lab.replay.prompts import Prompt
from tokenflow_sgl.lab.replay.stream import Stream
from tokenflow_sgl.lab.runs.run_tables import requests_table, tokens_table
from tokenflow_sgl.lab.traces.request import TraceRequest


@dataclass(slots=True)
class Record:
    """One request of the trace and what became of it.

    Attributes:
        request: As in the trace.
        rate: Tokens per second of the trace's clock that its reader consumes.
        scheduled_s: When it was due, on the trace's clock; NaN: never, or not yet.
        warm_up: Left out of every figure.
        stream: Its stream; None: never sent.
        prompt: Its prompt, for as long as the next turn may need it.
        not_sent: Why it was not sent; None: it was, or there was no time to.
    """

    request: TraceRequest
    rate: float
    scheduled_s: float
    warm_up: bool = False
    stream: Stream | None = None
    prompt: Prompt | None = None
    not_sent: str | None = None

    @property
    def ok(self) -> bool:
        """Whether its answer came to its end; one that was cut off did not."""
        stream = self.stream
        return (
            stream is not None
            and stream.ended is not None
            and not stream.cut_off
            and stream.error is None
        )

    @property
    def error(self) -> str | None:
        """Why it failed, or was not sent."""
        return self.not_sent if self.stream is None else self.stream.error


@dataclass(frozen=True, slots=True)
class TraceClock:
    """The trace's clock on the client's: `zero` of `time.monotonic()`, and seconds per second."""

    zero: float
    scale: float

    def trace_s(self, monotonic: float) -> float:
        """A stamp on the trace's clock."""
        return (monotonic - self.zero) / self.scale

    def wall_s(self, trace_s: float) -> float:
        """A time of the trace on `time.monotonic()`."""
        return self.zero + trace_s * self.scale


def tables(
    records: Sequence[Record], clock: TraceClock, *, server_counts: bool
) -> tuple[pa.Table, pa.Table]:
    """The requests' table and the tokens' table of a run.

    Args:
        records: All requests of the trace, in its order.
        clock: Converts the stamps.
        server_counts: Take the prompts' lengths from the server, where it told them.
    """
    rows = [_measured(record, clock, server_counts) for record in records]
    streams = [
        (index, np.frombuffer(record.stream.times))
        for index, record in enumerate(records)
        if record.stream is not None and record.stream.times
    ]
    owners = [np.full(times.size, index, np.int32) for index, times in streams]
    stamps = [clock.trace_s(times) for _, times in streams]  # type: ignore[arg-type]
    return (
        requests_table(
            [record.request for record in records],
            {name: [row[name] for row in rows] for name in rows[0]},
        ),
        tokens_table(
            np.concatenate(owners) if owners else np.empty(0, np.int32),
            np.concatenate(stamps) if stamps else np.empty(0),
        ),
    )


def _measured(
    record: Record, clock: TraceClock, server_counts: bool
) -> dict[str, str | float | int | bool | None]:
    """What was measured of one request, by the columns of the requests' table."""
    stream = record.stream
    told = stream.answer.prompt_tokens if stream is not None and server_counts else None
    ended = None if stream is None or stream.cut_off else stream.ended
    return {
        "warm_up": record.warm_up,
        "scheduled_s": None if math.isnan(record.scheduled_s) else record.scheduled_s,
        "sent_s": None if stream is None else clock.trace_s(stream.sent),
        "ended_s": None if ended is None else clock.trace_s(ended),
        "prompt_tokens": told or record.request.prompt_tokens,
        "output_tokens": 0 if stream is None else len(stream.times),
        "reasoning_tokens": 0 if stream is None else stream.answer.reasoning_tokens,
        "rate": record.rate,
        "finish_reason": None if stream is None else _storable(stream.answer.finish_reason),
        "error": _storable(record.error),
    }


def _storable(said: str | None) -> str | None:
    """A server's words without halves of surrogate pairs, which no file takes."""
    return None if said is None else said.encode(errors="replace").decode()
