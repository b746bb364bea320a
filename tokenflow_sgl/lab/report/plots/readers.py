"""Readers over time: buffers, single streams against their reading, and the map of stalls."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tokenflow_sgl.lab.report.plots.canvas import (
    INK,
    READING,
    RUN_COLOURS,
    STALLED,
    WAITING,
    draw,
    legend_text,
    run_legend,
    style,
)
from tokenflow_sgl.lab.report.reading import Reading, StallMap, pick_streams
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.runs.recording import FloatArray

_MOMENTS = 400


def buffers(runs: Sequence[Figures], readings: Sequence[Reading]) -> str:
    """Unread output of the readers over time: median, half and nine tenths of them."""

    def paint(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
        for number, (axes, reading) in enumerate(zip(panels, readings, strict=True)):
            grid = np.linspace(reading.start, reading.end, _MOMENTS)
            bands, _ = reading.buffer_bands(grid)
            colour = RUN_COLOURS[number]
            axes.fill_between(grid, bands[0], bands[4], color=colour, alpha=0.18, linewidth=0)
            axes.fill_between(grid, bands[1], bands[3], color=colour, alpha=0.35, linewidth=0)
            axes.plot(grid, bands[2], linewidth=1.4, **style(runs, number))
            axes.set(xlabel="time, s")
            axes.set_ylim(bottom=0)
            axes.set_xlim(_span(readings))
            if len(runs) > 1 or runs[0].state:
                axes.set_title(legend_text(runs[number].label))
        panels[0].set_ylabel("unread, s of reading")
        handles = [
            Line2D([], [], color=INK, label="median"),
            Patch(color=INK, alpha=0.35, linewidth=0, label="P25 to P75"),
            Patch(color=INK, alpha=0.18, linewidth=0, label="P5 to P95"),
        ]
        canvas.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)

    return draw(paint, 3.3, wide=True)


def streams(runs: Sequence[Figures], readings: Sequence[Reading]) -> str:
    """A few streams, in every run that has them, against their reading."""

    def paint(canvas: Canvas) -> None:
        picked = pick_streams([figures.judged for figures in runs])
        panels = canvas.subplots(1, max(len(picked), 1), squeeze=False)[0]
        for axes, (title, chosen, row) in zip(panels, picked, strict=False):
            index = int(runs[chosen].judged.recording.index[row])
            for number, reading in enumerate(readings):
                found = np.flatnonzero(runs[number].judged.recording.index == index)
                if found.size:
                    at, received, taken = reading.curves(int(found[0]))
                    axes.step(at, received, where="post", linewidth=1.5, **style(runs, number))
                    axes.step(at, taken, where="post", color=RUN_COLOURS[number], linewidth=0.9)
                    axes.fill_between(
                        at, taken, received, step="post", color=RUN_COLOURS[number], alpha=0.12
                    )
            rate = runs[chosen].judged.streams[row].rate
            axes.set(xlabel="time, s")
            axes.set_title(f"{title}: request {index}, {rate:g} tokens/s")
            axes.set_ylim(bottom=0)
        panels[0].set_ylabel("tokens")
        run_legend(panels[0], runs, loc="best")

    return draw(paint, 3.4, wide=True)


def stall_maps(runs: Sequence[Figures], readings: Sequence[Reading]) -> str:
    """One row a request, in the order of arrival: waiting, reading, standing still."""

    def paint(canvas: Canvas) -> None:
        panels = canvas.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
        for number, (axes, reading) in enumerate(zip(panels, readings, strict=True)):
            cells = reading.stall_map(columns=max(120, 480 // len(runs)))
            count = len(runs[number].judged)
            axes.imshow(
                _mix(cells),
                aspect="auto",
                interpolation="nearest",
                extent=(float(cells.edges[0]), float(cells.edges[-1]), max(count, 1), 0),
            )
            axes.grid(visible=False)
            axes.set(xlabel="time, s")
            if len(runs) > 1 or runs[0].state:
                axes.set_title(legend_text(runs[number].label))
        panels[0].set_xlim(_span(readings))
        panels[0].set_ylabel("requests, in the order of arrival")
        handles = [
            Patch(color=WAITING, label="waits for the first token"),
            Patch(color=READING, label="reads"),
            Patch(color=STALLED, label="stalled"),
        ]
        canvas.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=8)

    return draw(paint, 4.4, wide=True)


def _span(readings: Sequence[Reading]) -> tuple[float, float]:
    """From the first arrival to the last end of all runs, seconds."""
    return (
        min(reading.start for reading in readings),
        max(reading.end for reading in readings),
    )


def _mix(cells: StallMap) -> FloatArray:
    """Colours of the cells, RGBA: each state by its share, transparent for the rest."""
    shares = np.stack((cells.waiting, cells.reading, cells.stalled), axis=-1)
    colours = np.array(
        [
            [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
            for colour in (WAITING, READING, STALLED)
        ]
    )
    total = shares.sum(axis=-1, keepdims=True)
    mixed = (shares @ colours) / np.where(total > 0, total, 1.0)
    cell: FloatArray = np.clip(np.concatenate((mixed, total), axis=-1), 0.0, 1.0)
    return cell
