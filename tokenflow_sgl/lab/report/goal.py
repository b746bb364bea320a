"""When a stream is good enough: limits in seconds, and which streams keep them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.report.judged import judge
from tokenflow_sgl.lab.report.report_options import Options, ReportError
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.runs.recording import BoolArray, record
from tokenflow_sgl.qos import NOTICEABLE_STALL

METRICS: Mapping[str, str] = {
    "ttft": "time to first token",
    "ttfvt": "time to first visible token, behind the reasoning",
    "stall": "longest stall",
    "stalled": "all stalls together",
    "itl": "mean gap between tokens of the answer",
    "tbt": "99th percentile of its gaps between tokens",
    "e2e": "time to the last token",
}
"""What a goal may limit, in seconds."""
MOST_SECONDS = 1e6


@dataclass(frozen=True, slots=True)
class Goal:
    """Limits that a stream has to keep, all of them.

    Attributes:
        limits: Seconds at most, by metric.
    """

    limits: Mapping[str, float]

    def __str__(self) -> str:
        return ",".join(f"{name}<={seconds:g}" for name, seconds in self.limits.items())

    def met(self, run: Run) -> BoolArray:
        """Which streams of a run keep all limits, shape (n,).

        One whose answer did not come whole keeps none: an error, or the run ended before it.
        """
        threshold = self.limits.get("stall", NOTICEABLE_STALL)
        judged = judge(record(run), Options(stall_threshold_s=threshold))
        found = {
            "ttft": judged.column(lambda stream: stream.ttft),
            "ttfvt": judged.column(lambda stream: stream.ttfvt),
            # Stalls above the threshold; none: the longest one is within the limit.
            "stall": judged.column(lambda stream: math.inf if stream.stall_count else 0.0),
            "stalled": judged.column(lambda stream: stream.stall_seconds),
            # An answer of one token has no gap to be late.
            "itl": np.where(judged.recording.counts > 1, judged.tpot, 0.0),
            "tbt": np.where(judged.recording.counts > 1, judged.tbt_p99, 0.0),
            "e2e": judged.e2e,
        }
        within = [found[name] <= seconds for name, seconds in self.limits.items()]
        return np.asarray(judged.completed & np.logical_and.reduce(within))


def parse_goal(text: str) -> Goal:
    """The goal that a text as "ttft<=2,stall<=0.5" states.

    Raises:
        ReportError: It names no metric, one twice, or one that there is not; or a limit is no
            number of seconds.
    """
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, sign, number = (each.strip() for each in part.partition("<="))
        if name not in METRICS or not sign:
            raise ReportError(
                f"goal has {part.strip()!r}; allowed is METRIC<=SECONDS with a METRIC of "
                f"{', '.join(METRICS)}"
            )
        if name in limits:
            raise ReportError(f"goal has {name} twice")
        limits[name] = _seconds(name, number)
    return Goal(limits)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.0 <= seconds <= MOST_SECONDS:
        raise ReportError(
            f"goal has {name}<={text}; allowed is a number of seconds from 0 to {MOST_SECONDS:g}"
        )
    return seconds
