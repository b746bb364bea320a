"""Where all plots of the page look alike: size, colours, legends, and the way to inline SVG.

Text and axes are drawn in a placeholder colour that becomes `currentColor`, so that one picture
fits a light and a dark page.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from tokenflow_sgl.lab.report.run_figures import Figures

INK = "#010203"
"""Placeholder for the page's text colour."""
WAITING, READING, STALLED = "#9aa3b2", "#5b95dd", "#d9362b"
RUN_COLOURS = ("#3b82d6", "#e0803a", "#37a169", "#9b6bd3", "#c2559d", "#2a9fa8")
"""One a run, in their order."""
MOST_RUNS = len(RUN_COLOURS)

_RC: dict[Any, Any] = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "font.size": 9,
    "grid.alpha": 0.28,
    "grid.color": "#808080",
    "grid.linewidth": 0.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "svg.fonttype": "none",
    "svg.hashsalt": "tokenflow",
    "text.color": INK,
    "text.parse_math": False,  # names come from outside: a $ in one is a $
    "xtick.color": INK,
    "ytick.color": INK,
}
_WIDE, _HALF = 13.0, 6.4


def draw(paint: Callable[[Canvas], None], height: float, *, wide: bool) -> str:
    """Return what `paint` draws as an SVG element to put into a page."""
    with mpl.rc_context(_RC):
        # Figure, not pyplot: no global state, no display.
        canvas = Canvas(figsize=(_WIDE if wide else _HALF, height), layout="constrained")
        FigureCanvasSVG(canvas)
        paint(canvas)
        buffer = io.StringIO()
        canvas.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]  # no XML head: this goes into HTML
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # The page sets the size; ids of groups would be there once per plot.
    text = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    return text.replace(INK, "currentColor")


def style(runs: Sequence[Figures], number: int) -> dict[str, Any]:
    """Colour of a run, dashed where the run does not count."""
    return {"color": RUN_COLOURS[number], "linestyle": "--" if runs[number].state else "-"}


def run_legend(axes: Axes, runs: Sequence[Figures], *, loc: Any, points: bool = False) -> None:
    """Name the runs, with their state; one alone needs no name unless it does not count.

    points: The runs are shown by points, hollow where the run does not count.
    """
    if len(runs) == 1 and not runs[0].state:
        return
    handles = []
    for number, figures in enumerate(runs):
        look = style(runs, number)
        if points:
            hollow = {"markerfacecolor": "none"} if figures.state else {}
            look |= {"linestyle": "none", "marker": "o", "markersize": 5, **hollow}
        handles.append(Line2D([], [], label=legend_text(figures.label), **look))
    axes.legend(handles=handles, fontsize=8, loc=loc)


def legend_text(name: str) -> str:
    """A name that matplotlib does not take for a hidden one (they begin with an underscore)."""
    return f" {name}" if name.startswith("_") else name


def seconds_text(value: float) -> str:
    """Write a time for a logarithmic axis."""
    if value >= 1:
        return f"{value:g} s"
    return f"{value * 1000:g} ms" if value >= 1e-3 else f"{value * 1e6:g} µs"
