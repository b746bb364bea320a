"""A run's tables as numpy columns: the requests that count, and when their tokens arrived.

In goes a `Run`, out comes a `Recording` in which every token belongs to a request, every time is
possible, and warm-up is gone. Everything in `report/` reads this and not the tables.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokenflow_sgl.lab.runs.store import Run, RunError, RunInfo

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]

CLOCK_SLACK_S = 1e-6
"""How much before its request was due a token may be: rounding of converted clocks."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The requests that count, in the order of the trace; columns of shape (n,), NaN for null.

    Attributes:
        info: What the run was.
        index: Position in the trace.
        session: Conversation, or None.
        turn: Position in the conversation.
        scheduled: When the request was due, seconds; all other figures count from here. NaN: never,
            because the turn before it failed.
        sent: When it was sent.
        ended: End of its stream or its failure; NaN: the recording cut it off.
        prompt_tokens: Length of the prompt.
        requested_tokens: Length of the answer that was asked for.
        reasoning_tokens: Leading tokens, of those that arrived, that its reader does not see.
        rate: Tokens/s that its reader consumes.
        ttft_slo: TTFT that it asks for, seconds; NaN: none.
        tbt_slo: TBT that it asks for, seconds; NaN: none.
        finish_reason: length, stop, abort or None.
        error: Sentence or None.
        times: Arrival of every token, seconds, request after request.
        bounds: `times[bounds[i]:bounds[i + 1]]` are the tokens of row i, shape (n + 1,).
        warm_up: Warm-up requests that were left out.
        not_reached: Requests left out because the recording ended before they were due.
    """

    info: RunInfo
    index: IntArray
    session: tuple[str | None, ...]
    turn: IntArray
    scheduled: FloatArray
    sent: FloatArray
    ended: FloatArray
    prompt_tokens: IntArray
    requested_tokens: IntArray
    reasoning_tokens: IntArray
    rate: FloatArray
    ttft_slo: FloatArray
    tbt_slo: FloatArray
    finish_reason: tuple[str | None, ...]
    error: tuple[str | None, ...]
    times: FloatArray
    bounds: IntArray
    warm_up: int
    not_reached: int

    def __len__(self) -> int:
        """Number of requests that count."""
        return int(self.index.size)

    def tokens(self, row: int) -> FloatArray:
        """Arrival of the tokens of one row, seconds."""
        return self.times[self.bounds[row] : self.bounds[row + 1]]

    def visible(self, row: int) -> FloatArray:
        """Arrival of the tokens of one row that its reader sees, seconds."""
        return self.tokens(row)[self.reasoning_tokens[row] :]

    @property
    def due(self) -> BoolArray:
        """Whether it became due at all, per row."""
        return ~np.isnan(self.scheduled)

    @property
    def counts(self) -> IntArray:
        """Tokens that arrived, per row."""
        return np.diff(self.bounds)

    @property
    def visible_counts(self) -> IntArray:
        """Tokens that arrived and that the reader sees, per row."""
        return self.counts - self.reasoning_tokens

    @property
    def first(self) -> FloatArray:
        """Arrival of the first token per row, seconds; NaN where none came."""
        return self._edge(self.bounds[:-1])

    @property
    def last(self) -> FloatArray:
        """Arrival of the last token per row, seconds; NaN where none came."""
        return self._edge(self.bounds[1:] - 1)

    def _edge(self, position: IntArray) -> FloatArray:
        edge = np.full(len(self), np.nan)
        served = self.counts > 0
        edge[served] = self.times[position[served]]
        return edge


def record(run: Run) -> Recording:
    """Read the tables of a run.

    Raises:
        RunError: The tables contradict each other; the message names the request.
    """
    table, info = run.requests, run.info
    index = _ints(table, "index")
    if np.unique(index).size != index.size:
        raise RunError(f"run {info.name}: requests.parquet has an index twice")
    scheduled, sent = _floats(table, "scheduled_s"), _floats(table, "sent_s")
    warm_up = np.asarray(table["warm_up"].to_numpy(zero_copy_only=False), dtype=np.bool_)
    sessions, reasons, errors = (
        table[name].to_pylist() for name in ("session", "finish_reason", "error")
    )
    # A turn without a due time has an error if the turn before it failed; else the end came first.
    waits = np.isnan(scheduled) & np.array([error is None for error in errors], dtype=np.bool_)
    claimed = _ints(table, "output_tokens")
    unsent = ~warm_up & np.isnan(sent) & (claimed == 0)
    not_reached = unsent & (waits | (scheduled >= info.duration_s))
    order = np.argsort(index, kind="stable")
    rows = order[~(warm_up | not_reached)[order]]

    times, bounds = _token_slices(run, index[rows], index)
    recording = Recording(
        info=info,
        index=index[rows],
        session=tuple(sessions[row] for row in rows),
        turn=_ints(table, "turn")[rows],
        scheduled=scheduled[rows],
        sent=sent[rows],
        ended=_floats(table, "ended_s")[rows],
        prompt_tokens=_ints(table, "prompt_tokens")[rows],
        requested_tokens=_ints(table, "requested_tokens")[rows],
        reasoning_tokens=np.nan_to_num(_floats(table, "reasoning_tokens")[rows]).astype(np.int64),
        rate=_floats(table, "rate")[rows],
        ttft_slo=_floats(table, "ttft_slo_s")[rows],
        tbt_slo=_floats(table, "tbt_slo_s")[rows],
        finish_reason=tuple(reasons[row] for row in rows),
        error=tuple(errors[row] for row in rows),
        times=times,
        bounds=bounds,
        warm_up=int(warm_up.sum()),
        not_reached=int(not_reached.sum()),
    )
    _check(recording, claimed[rows])
    return recording


def _token_slices(run: Run, kept: IntArray, known: IntArray) -> tuple[FloatArray, IntArray]:
    """Times of the kept requests' tokens, and where each request's begin."""
    owner = run.tokens["request"].to_numpy()
    times = run.tokens["time_s"].to_numpy()
    strangers = ~np.isin(np.unique(owner), known)
    if strangers.any():
        raise RunError(
            f"run {run.info.name}: tokens.parquet has tokens of request "
            f"{int(np.unique(owner)[strangers][0])}, which is not in requests.parquet"
        )
    if np.any(np.diff(owner) < 0):  # another writer's order; ours is sorted already
        order = np.argsort(owner, kind="stable")
        owner, times = owner[order], times[order]
    low, high = np.searchsorted(owner, kept, "left"), np.searchsorted(owner, kept, "right")
    bounds = np.concatenate(([0], np.cumsum(high - low)))
    if int(bounds[-1]) != times.size:  # tokens of requests that do not count
        counted = np.isin(owner, kept)
        times = times[counted]
    return np.ascontiguousarray(times, dtype=np.float64), bounds.astype(np.int64)


def _check(recording: Recording, claimed: IntArray) -> None:
    counts = recording.counts
    backwards = np.diff(recording.times) < 0
    inner = recording.bounds[(recording.bounds > 0) & (recording.bounds < recording.times.size)]
    backwards[inner - 1] = False  # from one request's last token to the next one's first
    fails = {
        "has not as many tokens in tokens.parquet as its output_tokens": claimed != counts,
        "has reasoning_tokens that are not 0 to its output_tokens": (recording.reasoning_tokens < 0)
        | (recording.reasoning_tokens > claimed),
        "has a scheduled_s that is not a finite number": ~np.isfinite(recording.scheduled)
        & ~(np.isnan(recording.scheduled) & np.isnan(recording.sent) & (counts == 0)),
        "has a rate that is not a finite number > 0": ~(
            np.isfinite(recording.rate) & (recording.rate > 0)
        ),
        "has a token before it was due": recording.first < recording.scheduled - CLOCK_SLACK_S,
        "has a token after its end": recording.last > recording.ended + CLOCK_SLACK_S,
        "has a token after the end of the recording": recording.last
        > recording.info.duration_s + CLOCK_SLACK_S,
        "has an objective that is not > 0 s": (recording.ttft_slo <= 0) | (recording.tbt_slo <= 0),
    }
    if not np.isfinite(recording.times).all():
        raise RunError(f"run {recording.info.name}: a token's time_s is not a finite number")
    if backwards.any():
        row = int(np.searchsorted(recording.bounds, int(np.argmax(backwards)), "right")) - 1
        raise RunError(
            f"run {recording.info.name}: tokens of request {int(recording.index[row])} "
            "are not sorted by time"
        )
    for problem, bad in fails.items():
        if bad.any():
            at = int(recording.index[int(np.argmax(bad))])
            raise RunError(f"run {recording.info.name}: request {at} {problem}")


def _ints(table: pa.Table, name: str) -> IntArray:
    return np.asarray(table[name].to_numpy(), dtype=np.int64)


def _floats(table: pa.Table, name: str) -> FloatArray:
    return np.asarray(table[name].to_numpy(zero_copy_only=False), dtype=np.float64)
