"""What a figure of the catalogue is: its name, its unit, and when two values of it are alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tokenflow_sgl.lab.report.report_options import Options
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.sample import Sample
from tokenflow_sgl.lab.report.text import number
from tokenflow_sgl.lab.runs.recording import FloatArray


class Section(StrEnum):
    """Parts of a report that figures stand in."""

    latency = "Latency"
    throughput = "Throughput"
    reader = "Reader"
    slo = "SLO"


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a report: its name, unit, and how it is got.

    Attributes:
        key: Name for programs, unique.
        label: Name for people; `title` fills in what it says of a report's options.
        unit: Unit that it is shown in.
        scale: Shown value per stored value: 1000 for seconds shown as ms, 100 for shares as %.
        section: Where it is shown.
        higher_is_better: Which way is better.
        value: Where it is in `Figures`.
        resampled: The same figure over resampled requests.
        resolution: Relative differences up to this are unclear, whatever an interval says.
        whole: Whether it counts things.
        least: Differences up to this are unclear, too, in the stored unit.
    """

    key: str
    label: str
    unit: str
    scale: float
    section: Section
    higher_is_better: bool
    value: Callable[[Figures], float]
    resampled: Callable[[Sample], FloatArray]
    resolution: float = 0.005
    whole: bool = False
    least: float = 0.0

    def title(self, options: Options) -> str:
        """Name for people: where stalls are counted, with the threshold of the report."""
        return self.label.format(threshold=options.stall_threshold_s)

    def show(self, value: float) -> str:
        """Write a value in the figure's unit, without the unit."""
        return (
            f"{value:,.0f}" if self.whole and math.isfinite(value) else number(value * self.scale)
        )

    def alike(self, baseline: float, value: float) -> bool:
        """Whether two values are the same but for rounding."""
        same = self.show(baseline) == self.show(value)
        return same or abs(value - baseline) <= self.least
