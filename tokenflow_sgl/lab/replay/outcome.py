"""Judges a replay that has ended, and makes a run of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay.counting import how_counted
from tokenflow_sgl.lab.replay.pace import Pace
from tokenflow_sgl.lab.replay.records import Record, TraceClock, tables
from tokenflow_sgl.lab.replay.replay_options import ReplayOptions
from tokenflow_sgl.lab.replay.target import Target
from tokenflow_sgl.lab.runs.run_tables import trace_info
from tokenflow_sgl.lab.runs.store import Run, RunInfo
from tokenflow_sgl.lab.traces.request import Trace

MIN_SERVED = 0.9
"""A run is invalid if a smaller share of its requests was served to the end of the answer."""
MAX_LAG_S = 0.05
"""A run is invalid if a lag is above this at its 99th percentile.

Lags of sending and of the client's event loop count by the wall clock, the lag of an emulated
server's HTTP process by the device's.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOutcome:
    """How a replay went, beside the answers.

    Attributes:
        clock: Converts stamps to the trace's clock.
        started_at: Start by the wall clock, ISO 8601.
        ended: When it was over, on the clock whose zero `clock` has.
        interrupted: It was stopped before.
        send_lag_s: How late each request was sent, wall-clock seconds.
        loop_lag_s: How late the client's event loop was, wall-clock seconds.
        server_lag_s: How long an emulated server's HTTP process took to answer small questions,
            wall-clock seconds; empty on real ones.
        notes: Remarks on how it was done, in sentences.
        invalid: Reasons to distrust it that are known already, in sentences.
        pace: How an emulated device did.
    """

    clock: TraceClock
    started_at: str
    ended: float
    interrupted: bool
    send_lag_s: ArrayLike
    loop_lag_s: ArrayLike
    server_lag_s: ArrayLike
    notes: Sequence[str]
    invalid: Sequence[str]
    pace: Pace


def make_run(
    trace: Trace,
    target: Target,
    options: ReplayOptions,
    records: Sequence[Record],
    outcome: ReplayOutcome,
) -> Run:
    """Put the run together that a replay wrote.

    Args:
        trace: What was replayed.
        target: The server that answered.
        options: How it was replayed.
        records: All requests of the trace, in its order.
        outcome: How it went.
    """
    clock = outcome.clock
    counting = how_counted(records)
    requests, tokens = tables(records, clock, server_counts=options.api is Api.chat)
    told = {name: value for name, value in target.device.items() if name != "at_dilation"}
    device = {"emulated_device": told} if told else {}
    info = RunInfo(
        name=options.name or trace.name,
        source="replay",
        trace=trace_info(trace),
        target={
            "url": target.url,
            "model": target.model,
            **target.known,
            **device,
            "notes": [
                *outcome.notes,
                *_lengths(records, options, emulated=bool(target.device)),
                *counting.notes,
                *_priorities(trace, options),
            ],
        },
        options=options.describe(),
        duration_s=clock.trace_s(outcome.ended),
        time_scale=clock.scale,
        interrupted=outcome.interrupted,
        invalid=(
            *_hardly_served(records),
            *counting.invalid,
            *outcome.invalid,
            *_late("requests were sent", outcome.send_lag_s),
            *_late("the client's event loop ran", outcome.loop_lag_s),
            *_too_fast(outcome.pace, outcome.server_lag_s, clock.scale),
        ),
        send_lag_p99_s=_p99(outcome.send_lag_s),
        started_at=outcome.started_at,
    )
    return Run(info, requests, tokens)


def _hardly_served(records: Sequence[Record]) -> list[str]:
    """Figures of the few that were served are no figures of the trace."""
    errors = Counter(record.error for record in records if record.error is not None)
    served, failed = sum(record.ok for record in records), errors.total()
    if failed == 0 or served >= MIN_SERVED * (served + failed):
        return []
    (often, _), *_ = errors.most_common(1)
    few = (
        f"Only {served:,} of {served + failed:,} requests were served (allowed: {MIN_SERVED:.0%})"
        if served
        else f"None of {failed:,} requests was served"
    )
    return [f"{few}, most often for: {often}. Next: mend what this says, and replay again."]


def _late(what: str, lag_s: ArrayLike) -> list[str]:
    p99 = _p99(lag_s)
    if p99 is None or p99 <= MAX_LAG_S:
        return []
    return [
        f"At the 99th percentile {what} {p99 * 1000:.0f} ms late (allowed: "
        f"{MAX_LAG_S * 1000:.0f} ms): the client's machine is too slow or too busy. Next: end what "
        "else runs on it, or replay from another one."
    ]


def _too_fast(pace: Pace, server_lag_s: ArrayLike, scale: float) -> list[str]:
    """Why an emulated device was too fast for its machine, and the dilation to use."""
    lost, needed = list(pace.lost), pace.dilation
    p99 = _p99(server_lag_s)
    if p99 is not None and p99 > MAX_LAG_S * scale:
        # Answering takes as long by the wall clock however slowly the device runs.
        needed = max(needed, p99 / MAX_LAG_S)
        lost.append(
            "At the 99th percentile the emulated server's HTTP process took "
            f"{p99 / scale * 1000:.0f} ms of the device's time to answer a small question "
            f"(allowed: {MAX_LAG_S * 1000:.0f} ms): tokens come late although every step may have "
            "been in time."
        )
    if not needed:
        return lost
    if math.isinf(needed):
        step = f"a much larger --time-dilation than {scale:g}, or on a faster machine"
    else:
        unit = 0.25 if needed > 1 else 0.05
        step = f"--time-dilation {math.ceil(round(needed / unit, 6)) * unit:g}"
    return [f"{reason} Next: retry with a server that has {step}." for reason in lost]


def _lengths(records: Sequence[Record], options: ReplayOptions, *, emulated: bool) -> list[str]:
    """Notes on what ended the answers, and whether the server knew it before."""
    ended = [
        (record.request, record.stream)
        for record in records
        if record.ok and record.stream is not None
    ]
    if not ended:
        return []
    if options.known_lengths:
        return [
            "The limit of every request was the length of its answer, so the server knew when each "
            "answer would end."
        ]
    others = [request for request, stream in ended if len(stream.times) != request.output_tokens]
    if not emulated:
        return [
            "Answers ended where the model ended them, or at the client's limit: "
            f"{len(others):,} of {len(ended):,} had another length than in the trace."
        ]
    notes = [
        "The server was told the client's limit of each answer; the emulated device ended it at "
        "the trace's length, which the server did not know."
    ]
    if others:
        notes.append(
            f"{len(others):,} of {len(ended):,} answers had another length than in the trace, "
            "because the server cut their limit or did not count all their tokens."
        )
    return notes


def _priorities(trace: Trace, options: ReplayOptions) -> list[str]:
    if not (options.send_priority and trace.priority_updates):
        return []
    return [
        f"{len(trace.priority_updates)} changes of priority were not sent: no endpoint takes one "
        "for a request that runs."
    ]


def _p99(values: ArrayLike) -> float | None:
    data = np.asarray(values, dtype=np.float64)
    return float(np.percentile(data, 99)) if data.size else None
