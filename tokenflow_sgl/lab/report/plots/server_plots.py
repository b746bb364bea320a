"""The server over time: queue, running streams and tokens; offered load against goodput."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure as Canvas

from tokenflow_sgl.lab.report.plots.canvas import RUN_COLOURS, draw, run_legend, style
from tokenflow_sgl.lab.report.reading import Reading
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.time_windows import population, token_rate, window_edges, windows

_MOMENTS = 600
_RATE_WINDOWS = 120
_LOAD_WINDOWS = 24


def load_over_time(runs: Sequence[Figures], readings: Sequence[Reading]) -> str:
    """Requests without a first token, streams under way, and tokens per second."""

    def paint(canvas: Canvas) -> None:
        panels = canvas.subplots(3, 1, sharex=True)
        start = min(reading.start for reading in readings)
        end = max(reading.end for reading in readings)
        grid = np.linspace(start, end, _MOMENTS)
        edges = np.unique(np.minimum(window_edges(start, end, _RATE_WINDOWS), end))
        for number, figures in enumerate(runs):
            look = style(runs, number)
            waiting, running = population(figures.judged, grid)
            panels[0].step(grid, waiting, where="post", linewidth=1.2, **look)
            panels[1].step(grid, running, where="post", linewidth=1.2, **look)
            rate = token_rate(figures.judged, edges)
            panels[2].stairs(rate, edges, linewidth=1.2, baseline=None, **look)
        panels[0].set(ylabel="no first\ntoken yet")
        panels[1].set(ylabel="streams\nunder way")
        panels[2].set(ylabel="tokens/s", xlabel="time, s")
        for axes in panels:
            axes.set_ylim(bottom=0)
            axes.set_xlim(start, end)
        run_legend(panels[0], runs, loc="upper right")

    return draw(paint, 4.8, wide=True)


def load_against_goodput(runs: Sequence[Figures], readings: Sequence[Reading]) -> str:
    """Draw by windows of arrival: requests due per second, and how many were served well."""

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        start = min(reading.start for reading in readings)
        due = np.concatenate([figures.judged.recording.scheduled for figures in runs])
        latest = np.fmax.reduce([*due, start + 1.0])
        edges = window_edges(start, float(latest) * (1 + 1e-9), _LOAD_WINDOWS)
        most = 0.0
        for number, figures in enumerate(runs):
            cells = windows(figures.judged, edges)
            some = cells.offered > 0
            most = max(most, float(cells.offered.max()))
            fill = "none" if figures.state else RUN_COLOURS[number]
            axes.scatter(
                cells.offered[some],
                cells.good[some],
                s=22,
                facecolors=fill,
                edgecolors=RUN_COLOURS[number],
                alpha=0.75,
                clip_on=False,  # points at 0 lie on the edge
            )
        axes.plot([0, most], [0, most], color="#808080", linewidth=0.8, linestyle=":")
        width = edges[1] - edges[0]
        asked = any(figures.slo.requests for figures in runs)
        served = "completed within all objectives" if asked else "completed (no objectives)"
        axes.set(
            xlabel=f"requests due per second, windows of {width:g} s",
            ylabel=f"{served},\nper second",
        )
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        run_legend(axes, runs, loc="upper left", points=True)

    return draw(paint, 3.3, wide=False)
