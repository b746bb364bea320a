"""Collecting the rows of a file that has one request per row: order, drops, zero of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenflow_sgl.lab.traces.generators.arrivals import Arrivals
from tokenflow_sgl.lab.traces.loaders.source import Source
from tokenflow_sgl.lab.traces.parameters import FloatArray, stream
from tokenflow_sgl.lab.traces.request import (
    Accounting,
    PrefixBlock,
    Trace,
    TraceError,
    TraceRequest,
)

NO_OUTPUT = "no output tokens"
NO_PROMPT = "no prompt tokens"


def empty_reason(prompt_tokens: int, output_tokens: int) -> str | None:
    """Why a row is no request, or None if it is one."""
    if not output_tokens:
        return NO_OUTPUT
    return None if prompt_tokens else NO_PROMPT


class Intake:
    """Takes rows one by one and makes a trace of them.

    Args:
        source: The file, for errors.
        column: The column of times, for errors.
        sort: Sort rows that are out of order, instead of refusing them.
    """

    def __init__(self, source: Source, column: str, *, sort: bool) -> None:
        self._source = source
        self._column = column
        self._sort = sort
        self._rows = 0
        self._dropped: Counter[str] = Counter()
        self._late = 0
        self._zero: float | None = None
        self._latest: float = 0
        self._times: list[float] = []
        self._lengths: list[tuple[int, int]] = []
        self._prefixes: list[tuple[PrefixBlock, ...]] = []

    def add(
        self,
        time: float,
        prompt_tokens: int,
        output_tokens: int,
        *,
        prefix: tuple[PrefixBlock, ...] = (),
        drop: str | None = None,
    ) -> None:
        """Take a row of a trace, or count why it is left out.

        Args:
            time: When it was sent, in any unit, from any zero.
            prompt_tokens: Length of its prompt.
            output_tokens: Length of its answer.
            prefix: Shared stretches of its prompt.
            drop: Why it is left out; None: only if it has no prompt or no answer.

        Raises:
            TraceError: It is earlier than the row before it, and rows are not to be sorted.
        """
        self._rows += 1
        if self._zero is None:
            self._zero = self._latest = time
        elif time < self._latest:
            if not self._sort:
                self._source.error(
                    "is earlier than the row before it; files of this format are sorted by time "
                    "(sort=yes sorts them)",
                    self._column,
                )
            self._late += 1
            self._zero = min(self._zero, time)
        self._latest = max(self._latest, time)
        reason = drop or empty_reason(prompt_tokens, output_tokens)
        if reason:
            self._dropped[reason] += 1
            return
        self._times.append(time)
        self._lengths.append((prompt_tokens, output_tokens))
        self._prefixes.append(prefix)

    def trace(self, name: str, notes: Iterable[str], per_second: float = 1.0) -> Trace:
        """Make the trace; its zero is the first row, dropped or not.

        Args:
            name: Name of the trace.
            notes: What was done to the file.
            per_second: Units of the rows' times per second.

        Raises:
            TraceError: There were no rows, or all were dropped.
        """
        require_some(self._source, self._rows, len(self._times), self._dropped)
        assert self._zero is not None
        order: Iterable[int] = range(len(self._times))
        notes = list(notes)
        if self._late:
            order = sorted(order, key=self._times.__getitem__)
            notes.append(f"{self._late} rows were out of order; rows were sorted by time.")
        requests = tuple(
            TraceRequest(
                (self._times[index] - self._zero) / per_second,
                *self._lengths[index],
                prefix=self._prefixes[index],
            )
            for index in order
        )
        accounting = Accounting(self._rows, len(requests), dict(self._dropped))
        return Trace(name, requests, accounting, tuple(notes))


def require_some(source: Source, rows: int, emitted: int, dropped: Counter[str]) -> None:
    """Raise `TraceError` where a file has no data rows, or none of them is a request."""
    source.line = 0
    if not rows:
        source.error("has no data rows")
    if not emitted:
        reasons = ", ".join(f"{count} with {reason}" for reason, count in dropped.items())
        raise TraceError(f"{source.path}: none of the {rows} rows is a request: {reasons}")


def stem(source: Source) -> str:
    """Name of a trace: its file's, without folder and endings."""
    return source.path.name.partition(".")[0]


def draw_starts(arrivals: Arrivals, seed: int, count: int) -> FloatArray:
    """Start times for a file that has none, in whole microseconds."""
    return arrivals.times(stream(seed, "starts"), requests=count).round(6)
