"""A sweep in the terminal: what it says, then its figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.lab.report.fitting import Fitting
from tokenflow_sgl.lab.report.load_sweep import (
    Estimate,
    LoadPoint,
    LoadSweep,
    goodput_of,
    share_of,
)
from tokenflow_sgl.lab.report.text import number, plain

MOST_READERS = 0.99
"""Share of the readers within a goal up to which a load is said to serve them well."""
SHOWN = {
    "TTFT mean s": ("ttft_mean_s", 1.0),
    "TTFT P50 s": ("ttft_p50_s", 1.0),
    "TTFT P99 s": ("ttft_p99_s", 1.0),
    "ITL mean ms": ("itl_mean_s", 1000.0),
    "TBT P99 ms": ("tbt_p99_s", 1000.0),
    "E2E mean s": ("e2e_mean_s", 1.0),
    "stalled readers %": ("stalled_share", 100.0),
    "tokens/s": ("tokens_per_s", 1.0),
}
"""Columns of the table of all readers: the figure, and what it is multiplied by."""


def verdicts(sweep: LoadSweep) -> Iterator[str]:
    """What is wrong with the sweep, what it says of each goal, and what to know of its figures."""
    for point in sweep.points:
        for reason in point.invalid:
            yield f"INVALID: {sweep.kind.text(point.load)}: {reason}"
        if point.interrupted:
            yield f"INTERRUPTED: {sweep.kind.text(point.load)}: its only run was stopped."
    if sweep.ended_early is not None:
        yield f"Not whole: {sweep.ended_early}"
    for goal in sweep.goals:
        yield _verdict(sweep, goal)
    yield from sweep.notes


def _verdict(sweep: LoadSweep, goal: str) -> str:
    name, share = goodput_of(goal), share_of(goal)
    valid = [each for each in sweep.points if each.counts and math.isfinite(each.mean(name))]
    if not valid:
        return f"{goal}: no valid point says how many requests keep it."
    best = max(valid, key=lambda each: each.mean(name))
    if not best.mean(name):
        return f"{goal}: no reader was served within it at any point."
    said = (
        f"{goal}: most goodput at {sweep.kind.text(best.load)}, {_text(best.figures[name])} "
        f"requests/s ({best.mean(share):.1%} of the readers)."
    )
    by_load = sorted(valid, key=lambda each: each.load)
    well = list(itertools.takewhile(lambda each: each.mean(share) >= MOST_READERS, by_load))
    if not well:
        return f"{said} Even the lowest load serves fewer than {MOST_READERS:.0%} within it."
    return f"{said} At least {MOST_READERS:.0%} up to {sweep.kind.text(well[-1].load)}."


def sweep_view(sweep: LoadSweep) -> RenderableType:
    """The tables of a sweep: one of all readers, one of those within each goal."""
    shown: list[RenderableType] = [Fitting(_figures(sweep))]
    if sweep.goals:
        head = Text("Goodput: requests/s, and share of the readers, within the goal", "bold")
        shown += [Text(), head, Fitting(_goals(sweep))]
    if any(value.ci95 is not None for each in sweep.points for value in each.figures.values()):
        shown.append(Text("± is half of the 95 % confidence interval of the mean.", "dim"))
    return Group(*shown)


def print_sweep(sweep: LoadSweep, console: Console) -> None:
    """Print the name of a sweep and its verdicts, then its tables."""
    console.print(Text(plain(sweep.name, 40), "bold"))
    for sentence in verdicts(sweep):
        bad = sentence.startswith(("INVALID", "INTERRUPTED", "Not whole"))
        style = "bold red" if bad else ""
        console.print(Text(sentence, style), soft_wrap=True)
    console.print()
    console.print(sweep_view(sweep))


def _figures(sweep: LoadSweep) -> Table:
    table = _table(sweep)
    for head in SHOWN:
        table.add_column(head, justify="right")
    for each in sweep.points:
        cells = (_cell(each.figures[name], factor) for name, factor in SHOWN.values())
        table.add_row(_load(each), *cells)
    return table


def _goals(sweep: LoadSweep) -> Table:
    table = _table(sweep)
    for goal in sweep.goals:
        table.add_column(goal.replace(",", "\n"), justify="right")
    for each in sweep.points:
        cells = (
            f"{_text(each.figures[goodput_of(goal)])}  {each.mean(share_of(goal)):.1%}"
            for goal in sweep.goals
        )
        table.add_row(_load(each), *cells)
    return table


def _table(sweep: LoadSweep) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("at once" if sweep.kind == "concurrency" else "rate/s", justify="right")
    return table


def _load(point: LoadPoint) -> Text:
    state = "stopped" if point.state == "INTERRUPTED" else point.state
    return Text(f"{point.load:g}" + (f"\n{state}" if state else ""))


def _cell(value: Estimate, factor: float) -> str:
    """A figure, with its interval below."""
    below = "" if value.ci95 is None else f"\n±{_half(value.ci95 * factor)}"
    return number(value.mean * factor) + below


def _text(value: Estimate) -> str:
    beside = "" if value.ci95 is None else f" ±{_half(value.ci95)}"
    return number(value.mean) + beside


def _half(width: float) -> str:
    """Half of an interval's width, with two digits."""
    return f"{width:,.0f}" if width >= 100 else f"{width:.2g}"
