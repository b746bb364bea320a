"""Draws a dashboard with matplotlib, without Grafana."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tokenflow_sgl.lab.observe.dashboards.panels import Board, Kind, Panel
from tokenflow_sgl.lab.observe.dashboards.prometheus_source import Prometheus, Series

COLUMNS = 24
WIDE_INCHES, ROW_INCHES, NUMBER_INCHES, EMPTY_INCHES = 18.0, 2.9, 1.2, 0.7
POINTS = 200
UNITS: dict[str, Callable[[float], str]] = {
    "s": lambda value: f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms",
    "percentunit": lambda value: f"{value:.1%}",
    "Bps": lambda value: f"{value / 1e6:,.1f} MB/s",
}
"""How a value of Grafana's unit is written."""

Drawn = list[tuple[str, Series]]


def render(
    board: Board,
    source: Prometheus,
    path: Path,
    *,
    start: float,
    end: float,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Draw all panels of a board into one PNG.

    Args:
        board: What to draw.
        source: The Prometheus server to ask.
        path: Where the picture goes.
        start: Unix seconds.
        end: The same.
        progress: Called after each panel.
    """
    lines = []
    for panels in _lines_of(board):
        asked = []
        for panel in panels:
            asked.append((panel, _ask(panel, source, start, end)))
            progress()
        lines.append(asked)
    heights = [_height(line) for line in lines]
    figure = Figure(figsize=(WIDE_INCHES, sum(heights) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(board.title, x=0.01, ha="left", fontweight="bold")
    strips = figure.subfigures(len(lines), 1, height_ratios=heights, squeeze=False)
    for strip, line in zip(strips[:, 0], lines, strict=True):
        widths = [panel.width for panel, _ in line]
        places = strip.subplots(1, len(line), width_ratios=widths, squeeze=False)
        for axes, (panel, drawn) in zip(places[0], line, strict=True):
            _draw(axes, panel, drawn, start)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)


def _lines_of(board: Board) -> list[list[Panel]]:
    """Panels side by side, as Grafana flows them: by row, as many as fit."""
    lines: list[list[Panel]] = []
    for row in board.rows:
        taken = COLUMNS
        for panel in row.panels:
            if taken + panel.width > COLUMNS:
                lines.append([])
                taken = 0
            lines[-1].append(panel)
            taken += panel.width
    return lines


def _height(line: list[tuple[Panel, Drawn]]) -> float:
    if all(panel.kind is Kind.NUMBER for panel, _ in line):
        return NUMBER_INCHES
    return EMPTY_INCHES if all(_nothing(drawn) for _, drawn in line) else ROW_INCHES


def _ask(panel: Panel, source: Prometheus, start: float, end: float) -> Drawn:
    step = max((end - start) / POINTS, 1.0)
    return [
        (series.name(query.legend), series)
        for query in panel.queries
        for series in source.series(query.expr, start, end, step)
    ]


def _draw(axes: Axes, panel: Panel, drawn: Drawn, start: float) -> None:
    axes.set_title(panel.title, loc="left", fontsize=9, pad=8)
    why = _nothing(drawn)
    if why and not (drawn and panel.kind is Kind.NUMBER):  # a number shows its 0 by itself
        axes.set_axis_off()
        axes.text(0.5, 0.5, why, ha="center", va="center", color="grey")
        return
    {
        Kind.LINES: _draw_lines,
        Kind.STACKED: _draw_stacked,
        Kind.NUMBER: _draw_number,
        Kind.HEATMAP: _draw_heatmap,
        Kind.STATES: _draw_states,
    }[panel.kind](axes, panel, drawn, start)


def _nothing(drawn: Drawn) -> str:
    """What stands in place of a picture that would be empty; "" if it is not."""
    known = [series.values[~np.isnan(series.values)] for _, series in drawn]
    if not any(len(values) for values in known):
        return "no data"
    return "" if any(values.any() for values in known) else "0 all the time"


def _clock(seconds: float, _: float = 0.0) -> str:
    """Time since the picture's beginning, as min:s."""
    minutes, left = divmod(round(seconds), 60)
    return f"{minutes}:{left:02}"


def _along_time(axes: Axes, drawn: Drawn, start: float) -> None:
    """One axis of time for all panels of a picture, marked at whole seconds and minutes."""
    times = drawn[0][1].times - start
    axes.set_xlim(times[0], times[-1])
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 1.2, 1.5, 3, 6, 10]))
    axes.xaxis.set_major_formatter(_clock)
    axes.set_xlabel("min:s", fontsize=7, labelpad=1, loc="right")
    axes.tick_params(labelsize=7)


def _draw_lines(axes: Axes, panel: Panel, drawn: Drawn, start: float) -> None:
    for name, series in drawn:
        axes.plot(series.times - start, series.values, label=name, linewidth=1.2)
    _finish(axes, panel, drawn, start)


def _draw_stacked(axes: Axes, panel: Panel, drawn: Drawn, start: float) -> None:
    values = np.nan_to_num(np.stack([series.values for _, series in drawn]))
    axes.stackplot(drawn[0][1].times - start, values, labels=[name for name, _ in drawn], alpha=0.7)
    _finish(axes, panel, drawn, start)


def _finish(axes: Axes, panel: Panel, drawn: Drawn, start: float) -> None:
    if not panel.signed:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3, linewidth=0.5)
    _along_time(axes, drawn, start)
    if panel.unit in UNITS:
        axes.yaxis.set_major_formatter(lambda value, _: UNITS[panel.unit](value))
    axes.legend(fontsize=7, frameon=False, ncols=6, loc="upper center", bbox_to_anchor=(0.45, -0.1))


def _draw_number(axes: Axes, panel: Panel, drawn: Drawn, start: float) -> None:
    axes.set_axis_off()
    shown = []
    for name, series in drawn:
        known = series.values[~np.isnan(series.values)]
        value = float(known[-1]) if len(known) else math.nan
        shown.append((name, value))
    colour = panel.base
    for bound, above in panel.thresholds:
        if not math.isnan(shown[0][1]) and shown[0][1] >= bound:
            colour = above
    for number, (name, value) in enumerate(shown):
        place = (number + 0.5) / len(shown)
        text = "none" if math.isnan(value) else UNITS.get(panel.unit, "{:,.4g}".format)(value)
        axes.text(place, 0.5, text, ha="center", va="center", fontsize=15, color=colour)
        axes.text(place, 0.1, name, ha="center", va="center", fontsize=7, color="grey")


def _draw_heatmap(axes: Axes, panel: Panel, drawn: Drawn, start: float) -> None:
    drawn = sorted(drawn, key=lambda item: float(item[1].labels["le"]))
    upto = np.nan_to_num(np.stack([series.values for _, series in drawn]))
    inside = np.maximum(np.diff(upto, axis=0, prepend=0.0), 0.0)
    times = drawn[0][1].times - start
    axes.pcolormesh(times, np.arange(len(drawn)), inside, cmap="Blues", shading="nearest")
    axes.set_yticks(range(len(drawn)), [series.labels["le"] for _, series in drawn], fontsize=7)
    _along_time(axes, drawn, start)


def _draw_states(axes: Axes, panel: Panel, drawn: Drawn, start: float) -> None:
    for number, (_, series) in enumerate(drawn):
        on = np.nan_to_num(series.values) > 0
        axes.fill_between(series.times - start, number, number + 0.8, where=on, step="mid")
    axes.set_yticks([n + 0.4 for n in range(len(drawn))], [name for name, _ in drawn], fontsize=8)
    _along_time(axes, drawn, start)
