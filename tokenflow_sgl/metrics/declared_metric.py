"""What a metric of the scheduler is, and the buckets of histograms; `metrics` declares them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "tokenflow:"

Kind = Literal["counter", "gauge", "histogram"]


BUFFER_SECONDS = (0.0, 0.5, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
TOKENS = (0, 1, 2, 4, 8, 16, 17, 32, 64, 128, 256, 512, 1024, 4096, 16384)
"""Bounds at one page plus one token, which a preemption may leave, for pages of 1 and of 16."""
PASS_SECONDS = (0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)
LATENESS_SECONDS = (0.0, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
TTFT_SECONDS = (
    *(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75),
    *(1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300),
)
TBT_SECONDS = (
    *(0.0, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.5, 1, 2, 5, 10, 30),
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric of the scheduler: name, kind, labels and what it says.

    Attributes:
        name: Without the prefix; counters end in `_total`.
        kind: Prometheus' type.
        help: What it counts, one sentence.
        unit: Base unit, or what is counted.
        labels: Labels beyond SGLang's own labels of the scheduler.
        buckets: Upper bounds of a histogram's buckets.
        shared: Each process of the HTTP server shows its share, and they are added up.
    """

    name: str
    kind: Kind
    help: str
    unit: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    shared: bool = False

    @property
    def full_name(self) -> str:
        """Name of the metric on the metrics page."""
        return PREFIX + self.name
