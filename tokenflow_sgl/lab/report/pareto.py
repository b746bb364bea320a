"""A picture of sweeps: tokens per second against the readers that were served well."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from tokenflow_sgl.lab.report.load_sweep import Estimate, LoadPoint, LoadSweep, share_of
from tokenflow_sgl.lab.report.plots.canvas import RUN_COLOURS, legend_text
from tokenflow_sgl.lab.report.report_options import ReportError
from tokenflow_sgl.lab.report.text import plain


def plot_pareto(sweeps: Sequence[LoadSweep], path: Path) -> None:
    """Draw sweeps into one picture; upper right is better. It has a panel for each goal.

    A thick line joins the points that no other of their sweep beats in both, a thin one all points
    in the order of the load. Points that do not count are hollow and on no line.

    Args:
        sweeps: What was measured; their names are the labels.
        path: Where the picture goes; its ending says the format.

    Raises:
        ReportError: They have no goal in common, or there are too many of them.
    """
    goals = [goal for goal in sweeps[0].goals if all(goal in each.goals for each in sweeps)]
    if not goals:
        raise ReportError(
            "the sweeps have no goal in common, so there is nothing to draw: sweep again with the "
            "same --goal"
        )
    if len(sweeps) > len(RUN_COLOURS):
        raise ReportError(f"{len(sweeps)} sweeps; one picture has room for {len(RUN_COLOURS)}")
    per_gpu = all(each.gpus is not None for each in sweeps)
    name = "tokens_per_s_per_gpu" if per_gpu else "tokens_per_s"
    with mpl.rc_context({"text.parse_math": False}):  # a $ in a name is a $
        figure = Figure(figsize=(8, 0.8 + 4.2 * len(goals)), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(goals), 1, squeeze=False)[:, 0]
        for goal, axes in zip(goals, panels, strict=True):
            for number, sweep in enumerate(sweeps):
                label = legend_text(plain(sweep.name, 40))
                _draw(axes, sweep, (share_of(goal), name), RUN_COLOURS[number], label)
            axes.set_xlabel(f"readers served within {goal}")
            axes.set_ylabel("output tokens/s per GPU" if per_gpu else "output tokens/s")
            axes.set_xlim(-0.03, 1.06)  # of one sweep's loads, too: a share is one of all readers
            axes.set_ylim(0, 1.12 * axes.dataLim.ymax)
            axes.xaxis.set_major_formatter(PercentFormatter(1.0))
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(alpha=0.28)
            axes.legend(frameon=False, loc="best")
        kinds = " and ".join(dict.fromkeys(sweep.kind.value for sweep in sweeps))
        figure.suptitle(f"{plain(sweeps[0].trace, 60)}: points are labelled with their {kinds}")
        figure.savefig(path, dpi=120)


def frontier(places: Sequence[tuple[float, float]]) -> list[int]:
    """The places that no other one beats in one figure without losing in the other, left to right.

    Args:
        places: Two figures of each, of which more is better.
    """
    found: list[int] = []
    best = -math.inf
    order = sorted(range(len(places)), key=lambda index: places[index], reverse=True)
    for index in order:
        if places[index][1] > best:
            best = places[index][1]
            found.append(index)
    return found[::-1]


def _draw(axes: Axes, sweep: LoadSweep, figures: tuple[str, str], colour: str, label: str) -> None:
    shown = [
        (each, each.mean(figures[0]), each.mean(figures[1]))
        for each in sorted(sweep.points, key=lambda each: each.load)
        if all(math.isfinite(each.mean(name)) for name in figures)
    ]
    places = [(x, y) for each, x, y in shown if each.counts]
    best = [places[index] for index in frontier(places)]
    axes.plot(*_columns(places), color=colour, linewidth=0.8, alpha=0.5)
    axes.plot(*_columns(best), color=colour, linewidth=2.2, label=label)
    for each, x, y in shown:
        face = colour if each.counts else "none"
        axes.plot([x], [y], "o", color=colour, markerfacecolor=face, markersize=6)
        _whiskers(axes, each, figures, colour)
        state = f" {each.state.lower()}" if each.state else ""
        right = x > 0.85  # no room for words to the right of it
        axes.annotate(
            f"{each.load:g}{state}",
            (x, y),
            (-7 if right else 7, 5),
            textcoords="offset points",
            ha="right" if right else "left",
            color=colour,
        )


def _whiskers(axes: Axes, each: LoadPoint, names: tuple[str, str], colour: str) -> None:
    """The confidence intervals of a point, where it has any."""
    x, y = (each.figures[name] for name in names)
    if x.ci95 is not None or y.ci95 is not None:
        axes.errorbar(
            [x.mean], [y.mean], [_half(y)], [_half(x)], ecolor=colour, fmt="none", elinewidth=1
        )


def _half(value: Estimate) -> float:
    return value.ci95 or 0.0


def _columns(places: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in places], [y for _, y in places]
