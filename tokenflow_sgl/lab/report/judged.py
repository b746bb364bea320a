"""Every request of a run, judged: one row each, the columns that all figures are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tokenflow_sgl.choices import TbtRule
from tokenflow_sgl.lab.report.andes_qoe import andes_qoe
from tokenflow_sgl.lab.report.report_options import Options
from tokenflow_sgl.lab.runs.recording import BoolArray, FloatArray, IntArray, Recording
from tokenflow_sgl.qos import StreamQoS, evaluate_stream

COMPLETED = "completed"
_WHOLE = ("length", "stop")
"""Reasons that end an answer as it should."""


@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """The requests of one run, judged. Columns have shape (n,), in the order of the recording.

    Attributes:
        recording: What was judged.
        streams: The readers' figures. TTFT counts from when the request was due; without a token
            to the end of the recording, however soon it failed. 0 for turns that never were.
        outcome: `completed`, or why not, in words.
        completed: Whether the whole answer came.
        served: Whether a first token came.
        thinks: Whether some of its tokens are reasoning, which its reader does not see.
        seen: Whether a first visible token came.
        ttft_sent: TTFT counted from the time of sending, seconds; NaN where no token came.
        tpot: (last - first token) / (tokens - 1), seconds; NaN unless completed with two or more.
        e2e: Last token after the request was due, seconds; NaN unless completed with tokens.
        e2e_per_token: The same over the tokens that came, seconds.
        tbt_p99: 99th percentile of its gaps, seconds; NaN with fewer than two tokens.
        qoe: Andes QoE, 0 to 1.
        has_ttft_slo: Whether it has a TTFT objective, carried or by option.
        has_tbt_slo: Whether it has a TBT objective, carried or by option.
        met_ttft: Whether a first token came within the TTFT objective; true where it has none.
        met_tbt: Whether it completed within the TBT objective; true where it has none.
        good: Completed, and within every objective that it has.
        gaps: Gaps between tokens that a TBT objective applied to.
        gaps_met: How many of them were within it.
    """

    recording: Recording
    streams: tuple[StreamQoS, ...]
    outcome: tuple[str, ...]
    completed: BoolArray
    served: BoolArray
    thinks: BoolArray
    seen: BoolArray
    ttft_sent: FloatArray
    tpot: FloatArray
    e2e: FloatArray
    e2e_per_token: FloatArray
    tbt_p99: FloatArray
    qoe: FloatArray
    has_ttft_slo: BoolArray
    has_tbt_slo: BoolArray
    met_ttft: BoolArray
    met_tbt: BoolArray
    good: BoolArray
    gaps: IntArray
    gaps_met: IntArray

    def __len__(self) -> int:
        """Number of requests."""
        return len(self.streams)

    @property
    def ttft(self) -> FloatArray:
        """Time to first token, seconds, shape (n,); NaN for turns that were never due."""
        return np.where(self.recording.due, self.column(lambda stream: stream.ttft), np.nan)

    @property
    def ttfvt(self) -> FloatArray:
        """Time to first visible token likewise; empty where no request thinks."""
        if not self.thinks.any():
            return np.zeros(0)
        return np.where(self.recording.due, self.column(lambda stream: stream.ttfvt), np.nan)

    def column(self, get: Callable[[StreamQoS], float]) -> FloatArray:
        """One number of each stream, shape (n,)."""
        return np.array([get(stream) for stream in self.streams], dtype=np.float64)


def judge(recording: Recording, options: Options) -> Judged:
    """Judge every request of a recording."""
    count = len(recording)
    outcome = tuple(_outcome(recording, row) for row in range(count))
    completed = np.array([word == COMPLETED for word in outcome], dtype=np.bool_)
    counts, first, last = recording.counts, recording.first, recording.last
    served, seen = counts > 0, recording.visible_counts > 0
    due, gave_up = _waits(recording)
    length = np.where(completed & served, counts, np.maximum(recording.requested_tokens, counts))
    length = np.maximum(length, 1)
    streams: list[StreamQoS] = []
    qoe, tbt_p99 = np.zeros(count), np.full(count, np.nan)
    ttft_slo = _objective(recording.ttft_slo, options.ttft_slo_s)
    tbt_slo = _objective(recording.tbt_slo, options.tbt_slo_s)
    gaps, gaps_met = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for row in range(count):
        wait = _ReaderWait(float(due[row]), float(gave_up[row]), int(length[row]))
        stream, qoe[row] = _judge_stream(recording, row, wait, options)
        if not completed[row]:
            stream = _waits_on(stream, recording.info.duration_s, seen=bool(seen[row]))
        streams.append(stream)
        if stream.tbt_seconds.size:
            tbt_p99[row] = np.percentile(stream.tbt_seconds, 99)
            if not np.isnan(tbt_slo[row]):
                gaps[row] = stream.tbt_seconds.size
                gaps_met[row] = np.count_nonzero(stream.tbt_seconds <= tbt_slo[row])

    tpot = np.full(count, np.nan)
    many = completed & (counts > 1)
    tpot[many] = (last - first)[many] / (counts[many] - 1)
    e2e = np.where(completed, last - recording.scheduled, np.nan)
    met_ttft = np.isnan(ttft_slo) | (served & (first - recording.scheduled <= ttft_slo))
    # A single token has no gap to be late: its TBT objective is met, as in bench_serving.
    within = {
        TbtRule.p99: tbt_p99 <= tbt_slo,
        TbtRule.mean: tpot <= tbt_slo,
        TbtRule.every: gaps_met == gaps,
    }[options.tbt_rule]
    met_tbt = np.isnan(tbt_slo) | (completed & served & (within | (counts == 1)))
    return Judged(
        recording=recording,
        streams=tuple(streams),
        outcome=outcome,
        completed=completed,
        served=served,
        thinks=recording.reasoning_tokens > 0,
        seen=seen,
        ttft_sent=first - recording.sent,
        tpot=tpot,
        e2e=e2e,
        e2e_per_token=e2e / np.maximum(counts, 1),
        tbt_p99=tbt_p99,
        qoe=qoe,
        has_ttft_slo=~np.isnan(ttft_slo),
        has_tbt_slo=~np.isnan(tbt_slo),
        met_ttft=met_ttft,
        met_tbt=met_tbt,
        good=completed & met_ttft & met_tbt,
        gaps=gaps,
        gaps_met=gaps_met,
    )


class _ReaderWait(NamedTuple):
    """When a reader begins to wait and until when, seconds, and for how many tokens."""

    arrival: float
    until: float
    length: int


def _judge_stream(
    recording: Recording, row: int, wait: _ReaderWait, options: Options
) -> tuple[StreamQoS, float]:
    """How one reader fared, and the QoE of Andes."""
    times = np.maximum(recording.tokens(row), wait.arrival)  # see CLOCK_SLACK_S
    reasoning, rate = int(recording.reasoning_tokens[row]), float(recording.rate[row])
    stream = evaluate_stream(
        times,
        rate=rate,
        arrival=wait.arrival,
        output_tokens=wait.length,
        reasoning_tokens=reasoning,
        until=wait.until,
        tau1=options.tau1,
        tau2=options.tau2,
        stall_threshold=options.stall_threshold_s,
    )
    objective = float(recording.ttft_slo[row])
    qoe = andes_qoe(
        times[reasoning:],
        rate=rate,
        arrival=wait.arrival,
        expected_ttft=options.expected_ttft_s if np.isnan(objective) else objective,
        output_tokens=wait.length - reasoning,
        until=wait.until,
    )
    return stream, qoe


def _waits(recording: Recording) -> tuple[FloatArray, FloatArray]:
    """When each reader begins to wait, and until when; seconds, shape (n,)."""
    # After a failure the reader waits until then; without one, until the recording ends.
    gave_up = np.where(np.isnan(recording.ended), recording.info.duration_s, recording.ended)
    # A turn that was never due waits for nothing: it comes and goes at the end.
    due = np.where(recording.due, recording.scheduled, gave_up)
    return due, np.fmax(np.maximum(gave_up, due), recording.last)


def _waits_on(stream: StreamQoS, over: float, *, seen: bool) -> StreamQoS:
    """An answer that failed: a first token that did not come is awaited until all is over.

    If that wait ended at the failure, requests that are refused at once would improve the mean.
    """
    waited = max(over - stream.arrival, 0.0)
    return replace(
        stream,
        ttft=stream.ttft if stream.served else waited,
        ttfvt=stream.ttfvt if seen else waited,
    )


def _outcome(recording: Recording, row: int) -> str:
    error, reason = recording.error[row], recording.finish_reason[row]
    if error is not None:
        return error
    if reason in _WHOLE:
        return COMPLETED if recording.counts[row] else f"ended by {reason} without any token"
    if np.isnan(recording.sent[row]):
        return "never sent"
    if np.isnan(recording.ended[row]):
        return "cut off by the end of the recording"
    return "broke off" if reason is None else f"ended by {reason}"


def _objective(carried: FloatArray, otherwise: float | None) -> FloatArray:
    return carried if otherwise is None else np.where(np.isnan(carried), otherwise, carried)
