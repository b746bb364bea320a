"""What the readers of a burst lived through, and how two servers compare over several bursts.

Client records go in; out come the figures of `tokenflow_sgl.qos` and rows to show. Times are in
seconds, throughputs in tokens per second.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenflow_sgl.demo.client import StreamRecord
from tokenflow_sgl.errors import FailedError
from tokenflow_sgl.qos import NOTICEABLE_STALL, RunQoS, StreamQoS, evaluate_run, evaluate_stream


class BurstError(FailedError):
    """A burst that must not be compared, because answers failed or ended early."""


@dataclass(frozen=True)
class BurstRun:
    """One burst on one server, judged."""

    server: str
    records: tuple[StreamRecord, ...]
    streams: tuple[StreamQoS, ...]
    qos: RunQoS

    @property
    def stalled_percent(self) -> float:
        """Share of the readers with at least one stall that they could notice, percent."""
        return 100 * self.qos.stalled_share


@dataclass(frozen=True)
class Row:
    """One figure of both servers: the median over the bursts."""

    label: str
    unit: str
    higher_is_better: bool
    first: float
    second: float

    @property
    def ratio(self) -> float:
        """Second over first; NaN when the first is zero."""
        return self.second / self.first if self.first else math.nan


_STALLED = f"stalled > {NOTICEABLE_STALL:g} s at a time"
_FIGURES: tuple[tuple[str, str, bool, Callable[[BurstRun], float]], ...] = (
    ("TTFT, mean", "s", False, lambda run: run.qos.ttft.mean),
    ("TTFT, P50", "s", False, lambda run: run.qos.ttft.p50),
    ("TTFT, P99", "s", False, lambda run: run.qos.ttft.p99),
    ("stalled time, all readers", "s", False, lambda run: run.qos.stall_seconds),
    (_STALLED, "% readers", False, lambda run: run.stalled_percent),
    ("effective throughput", "tokens/s", True, lambda run: run.qos.effective_throughput),
    ("token throughput", "tokens/s", True, lambda run: run.qos.token_throughput),
    ("whole burst", "s", False, lambda run: run.qos.duration),
)
"""Label, unit, whether higher is better, and where the figure is found."""


def measure(server: str, records: Sequence[StreamRecord]) -> BurstRun:
    """Judge one burst on one server.

    Raises:
        BurstError: An answer failed or is not as long as was asked for.
    """
    for number, record in enumerate(records):
        wanted = record.request.max_new_tokens
        if record.error is not None:
            raise BurstError(f"{server}: request {number} failed: {record.error}")
        if record.finish_reason != "length" or len(record.output_ids) != wanted:
            raise BurstError(
                f"{server}: request {number} ended with {record.finish_reason!r} after "
                f"{len(record.output_ids)} of {wanted} tokens"
            )
    streams = tuple(
        evaluate_stream(record.token_times_s, rate=record.request.rate, arrival=record.sent_s)
        for record in records
    )
    # Eq. 2's two penalties have no values in the paper, so its QoS is not among the figures.
    qos = evaluate_run(streams, ttft_penalty=0.0, stall_penalty=0.0)
    return BurstRun(server, tuple(records), streams, qos)


def compare(first: Sequence[BurstRun], second: Sequence[BurstRun]) -> tuple[Row, ...]:
    """Return both servers' bursts side by side: the medians, and of stalls the means.

    Stalls are rare and add up: most bursts have next to none, and a median would hide the
    one burst in which readers stood still.
    """
    return tuple(
        Row(
            label,
            unit,
            higher_is_better,
            _typical(label, [figure(run) for run in first]),
            _typical(label, [figure(run) for run in second]),
        )
        for label, unit, higher_is_better, figure in _FIGURES
    )


def _typical(label: str, values: Sequence[float]) -> float:
    return statistics.fmean(values) if label.startswith("stall") else statistics.median(values)


def identical_answers(first: Sequence[BurstRun], second: Sequence[BurstRun]) -> int:
    """Return how many answers are the same on both servers, token for token."""
    return sum(
        one.output_ids == other.output_ids
        for runs in zip(first, second, strict=True)
        for one, other in zip(*(run.records for run in runs), strict=True)
    )
