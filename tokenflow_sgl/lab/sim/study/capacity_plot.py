"""A picture of capacity: the share of streams that meet the goal, by arrival rate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter, ScalarFormatter

from tokenflow_sgl.lab.sim.study.capacity_search import Carried

_COLOURS = ("#9aa3b2", "#3b82d6", "#e0803a", "#37a169", "#9b6bd3", "#c2559d", "#2a9fa8")


def plot_capacity(found: Sequence[Carried], share: float, path: Path, title: str) -> None:
    """Write a PNG: a line per scheduler with the rates that were tried, and where it ends.

    Triangles are rates whose runs were ended early: at most that share meets the goal there.
    """
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for number, each in enumerate(found):
        colour = _COLOURS[number % len(_COLOURS)]
        rates = [tried.rate for tried in each.tried if tried.whole]
        shares = [tried.share for tried in each.tried if tried.whole]
        label = f"{each.policy}: {each.rate:.3g} streams/s"
        axes.plot(rates, shares, marker="o", markersize=4, color=colour, label=label)
        ended = [(tried.rate, tried.share) for tried in each.tried if not tried.whole]
        if ended:  # the share is below that
            axes.plot(*zip(*ended, strict=True), "v", markersize=6, fillstyle="none", color=colour)
        if each.best is not None:
            axes.axvline(each.best.rate, color=colour, linestyle=":", linewidth=1)
    axes.axhline(share, color="black", linewidth=0.8)
    axes.annotate(f"{share:.2%}", (1.0, share), xycoords=("axes fraction", "data"), va="bottom")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(ScalarFormatter())
    axes.xaxis.set_minor_formatter(ScalarFormatter())
    axes.tick_params(axis="x", which="both", length=4, pad=4)  # all numbers on one line
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(-0.02, 1.05)
    axes.set_xlabel("arrivals, streams per second")
    axes.set_ylabel("streams that meet the goal")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(framealpha=1.0, edgecolor="none", loc="lower left")
    figure.suptitle(title)
    figure.savefig(path, dpi=120)
