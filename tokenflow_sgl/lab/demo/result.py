"""What the demo compares: the answers, token by token, and a few figures of both runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.table import Table

from tokenflow_sgl.errors import FailedError
from tokenflow_sgl.lab.report import Figures
from tokenflow_sgl.lab.report.catalogue import BY_KEY
from tokenflow_sgl.lab.report.figure_kind import Figure

Answers = Mapping[int, Sequence[int]]
"""Token ids of each answer by the index of its request."""
ROWS = (
    "token_throughput",
    "effective_throughput",
    "ttft_mean",
    "ttft_p99",
    "stall_seconds",
    "stalled_share",
    "makespan",
)
"""The figures that are shown, by their keys; `tokenflow report` has all of them."""
_EVEN = 0.03
"""Ratios this close to 1 are shown as neither better nor worse."""


class BurstError(FailedError):
    """A run that must not be compared, because answers failed or it is not valid."""


def check(figures: Figures) -> None:
    """Make sure that a run can be compared.

    Raises:
        BurstError: An answer failed, or the run is not valid.
    """
    if figures.warnings:
        raise BurstError(f"{figures.label}: {figures.warnings[0]}")
    requests = figures.requests
    if requests.completed < requests.counted:
        reason, _ = next(iter(requests.failed.items()))
        raise BurstError(
            f"{figures.label}: {requests.counted - requests.completed} of {requests.counted} "
            f"answers failed, most often for: {reason}"
        )


def identical_answers(first: Answers, second: Answers) -> int:
    """How many answers are the same on both servers, token for token; empty ones are not."""
    return sum(bool(ids) and ids == second.get(index) for index, ids in first.items())


def result_table(first: Figures, second: Figures) -> Table:
    """The two runs side by side, one row a figure.

    The ratio is green where the second run is better and red where it is worse.
    """
    table = Table(show_edge=False)
    table.add_column("")
    table.add_column(first.label, justify="right")
    table.add_column(second.label, justify="right", style="bold")
    table.add_column("unit")
    table.add_column(f"{second.label} / {first.label}", justify="right")
    for figure in (BY_KEY[key] for key in ROWS):
        one, other = figure.value(first), figure.value(second)
        table.add_row(
            figure.title(first.options),
            figure.show(one),
            figure.show(other),
            figure.unit,
            _ratio(figure, one, other),
        )
    return table


def _ratio(figure: Figure, one: float, other: float) -> str:
    ratio = other / one if one else math.nan
    if not math.isfinite(ratio):
        return "-"
    text = f"{ratio:.2f}x"
    if abs(ratio - 1) <= _EVEN:
        return text
    better = (ratio > 1) == figure.higher_is_better
    return f"[green]{text}[/]" if better else f"[red]{text}[/]"
