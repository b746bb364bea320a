"""Distributions of TTFT, TBT and stalled time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullLocator, PercentFormatter

from tokenflow_sgl.lab.report.plots.canvas import draw, run_legend, seconds_text, style
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.time_windows import distribution

_SHORTEST_S = 1e-4
"""Left end of the axis of gaps; tokens of one chunk are 0 apart and lie left of it."""
_POINTS = 500


def ttft_cdf(runs: Sequence[Figures]) -> str:
    """Share of the requests that had their first token within so many seconds."""

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for number, figures in enumerate(runs):
            judged = figures.judged
            ttft = judged.column(lambda stream: stream.ttft)[judged.served]
            values, shares = distribution(ttft, len(judged))
            axes.step(values, shares, where="post", **style(runs, number))
        axes.set(xlabel="TTFT, s", ylabel="requests", ylim=(0, 1.02))
        axes.set_xlim(left=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        run_legend(axes, runs, loc="lower right")

    return draw(paint, 3.3, wide=False)


def tbt_cdf(runs: Sequence[Figures]) -> str:
    """Share of the gaps between tokens that are at most so long."""

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        longest = max((figures.latency.tbt.max for figures in runs), default=1.0)
        longest = longest if longest > 2 * _SHORTEST_S else 1.0  # also NaN
        at = np.geomspace(_SHORTEST_S, longest, _POINTS)
        for number, figures in enumerate(runs):
            gaps = [stream.tbt_seconds for stream in figures.judged.streams]
            pooled = np.concatenate([*gaps, np.empty(0)])
            if pooled.size:
                axes.plot(*distribution(pooled, pooled.size, at), **style(runs, number))
        axes.set_xscale("log")
        axes.set(xlabel="TBT", ylabel="gaps between tokens", ylim=(0, 1.02))
        axes.set_xlim(_SHORTEST_S, longest)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: seconds_text(value)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        run_legend(axes, runs, loc="upper left")

    return draw(paint, 3.3, wide=False)


def stall_cdf(runs: Sequence[Figures]) -> str:
    """Share of the requests with at most so many seconds of stalls."""

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        longest = max([figures.readers.stall.max for figures in runs if len(figures.judged)] or [0])
        longest = max(longest, 0.1)
        for number, figures in enumerate(runs):
            stall = figures.judged.column(lambda stream: stream.stall_seconds)
            values, shares = distribution(np.append(stall, np.inf), len(stall))
            values[-1], shares[-1] = longest, 1.0
            values = np.append(0.0, values)
            axes.step(values, np.append(0.0, shares), where="post", **style(runs, number))
        axes.set(xlabel="stalled time per request, s", ylabel="requests", ylim=(0, 1.02))
        axes.set_xlim(0, longest)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        run_legend(axes, runs, loc="lower right")

    return draw(paint, 3.3, wide=False)
