"""A server between two readings of its metrics: what `tokenflow top` shows, in either form."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from tokenflow_sgl.lab.observe.metrics_page import Scrape
from tokenflow_sgl.metrics import METRICS

History = deque[tuple[float, float]]
"""Tokens made and effective tokens per second, oldest first."""
LEVELS = (0.0, 1.0, 3.0, 8.0, 21.0, 89.0, math.inf)
"""Upper bounds of the levels of unread output, seconds; bounds of the histogram's buckets."""
LEVEL_NAMES = ("nothing", *(f"to {bound:g} s" for bound in LEVELS[1:-1]), "more")
MODES = {
    "idle": "all streams fit, and SGLang's own policy runs",
    "working-set": "the policy orders admission and preemption",
    "fallback": "the policy fails, and SGLang's own policy runs",
}
"""What the scheduler does, by its mode. "idle" means the policy, not the server."""


@dataclass(frozen=True, slots=True)
class Look:
    """A server now, and what it did since the last reading.

    Attributes:
        now: Its metrics.
        gained: What counters and histograms gained.
        seconds: Since the last reading.
        history: Throughput of earlier readings.
    """

    now: Scrape
    gained: Scrape
    seconds: float
    history: History = field(default_factory=deque)

    def rate(self, name: str, **labels: str) -> float:
        """Gain of a counter per second; 0 where it is not there."""
        total = self.gained.total(name, **labels)
        return 0.0 if math.isnan(total) else total / self.seconds

    def level(self, name: str, **labels: str) -> float:
        """A gauge; 0 where it is not there."""
        total = self.now.total(name, **labels)
        return 0.0 if math.isnan(total) else total

    def most(self, name: str, **labels: str) -> float:
        """A gauge that does not add up over ranks: that of the highest; 0 where it is none."""
        highest = self.now.most(name, **labels)
        return 0.0 if math.isnan(highest) else highest


def by_level(gained: Scrape) -> list[float]:
    """How many samples of unread output fell into each level."""
    bounds = METRICS["buffer_seconds"].buckets
    upto = {float(bound): gained.total("buffer_seconds_bucket", le=_go(bound)) for bound in bounds}
    upto[math.inf] = gained.total("buffer_seconds_bucket", le="+Inf")
    counts, below = [], 0.0
    for level in LEVELS:
        total = upto[level]
        total = below if math.isnan(total) else total
        counts.append(max(total - below, 0.0))
        below = total
    return counts


def _go(bound: float) -> str:
    """A bound as Prometheus writes it."""
    return f"{float(bound)}"
