"""The picture of a trace: arrivals over time, gaps between them, lengths of prompts and answers."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from tokenflow_sgl.lab.traces.parameters import FloatArray
from tokenflow_sgl.lab.traces.request import Trace
from tokenflow_sgl.lab.traces.stats import Distribution, arrival_times

_BLUE, _ORANGE, _GREEN, _GREY = "#4c8dd6", "#e08a2e", "#3a9d6e", "#7a828e"
_BINS = 120
_LEGEND: dict[str, Any] = {"framealpha": 0.85, "edgecolor": "none"}


def draw(path: Path, trace: Trace) -> None:
    """Write the picture of a trace with at least one request to `path` (PNG, SVG or PDF)."""
    # Figure, not pyplot: no global state, no display.
    figure = Figure(figsize=(11.0, 7.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2)
    times = arrival_times(trace)
    _arrivals(axes[0, 0], times)
    _gaps(axes[0, 1], np.diff(times))
    requests = trace.requests
    _lengths(axes[1, 0], "prompt", [request.prompt_tokens for request in requests], _GREEN)
    _lengths(axes[1, 1], "output", [request.output_tokens for request in requests], _ORANGE)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    dropped = trace.accounting.rows - trace.accounting.emitted
    title = f"{trace.name}: {len(requests):,} requests"
    if dropped:
        title += f", {dropped:,} of {trace.accounting.rows:,} rows dropped"
    figure.suptitle(title, fontsize=13, fontweight="bold")
    if trace.notes:
        notes = "\n".join(textwrap.wrap(" ".join(trace.notes), 150))
        figure.supxlabel(notes, fontsize=7.5, color=_GREY)
    figure.savefig(path)


def _arrivals(axes: Axes, times: FloatArray) -> None:
    axes.set_title("arrivals", loc="left", fontsize=10)
    axes.set_xlabel("time, s")
    if times[-1] == times[0]:
        axes.bar([times[0]], [len(times)], width=0.5, color=_BLUE)
        axes.set(xlim=(times[0] - 5, times[0] + 5), ylabel="requests at once")
        return
    bin_s = _nice((times[-1] - times[0]) / _BINS)
    first = np.floor(times[0] / bin_s)
    edges = bin_s * np.arange(first, np.floor(times[-1] / bin_s) + 2)
    counts, _ = np.histogram(times, edges)
    axes.stairs(counts / bin_s, edges, fill=True, color=_BLUE, alpha=0.85)
    mean = (len(times) - 1) / (times[-1] - times[0])
    axes.axhline(mean, color=_GREY, linewidth=1, linestyle="--", label=f"mean {mean:.3g}/s")
    axes.set(
        xlim=(edges[0], edges[-1]), ylim=(0, None), ylabel=f"requests per s, bins of {bin_s:g} s"
    )
    axes.legend(fontsize=8, **_LEGEND)


def _gaps(axes: Axes, gaps: FloatArray) -> None:
    axes.set_title("gaps between arrivals", loc="left", fontsize=10)
    positive = np.sort(gaps[gaps > 0])
    if not len(positive):
        axes.text(0.5, 0.5, "all arrive at once", ha="center", va="center", color=_GREY)
        axes.set_axis_off()
        return
    below = len(gaps) - len(positive)  # gaps of 0 have no place on a logarithmic axis
    share = (below + np.arange(1, len(positive) + 1)) / len(gaps)
    axes.step(positive, share, where="post", color=_BLUE, label="trace")
    # The few shortest gaps would stretch the axis over decades that show nothing.
    shortest = positive[len(positive) // 200]
    at = np.geomspace(shortest, positive[-1] * 1.5, 200)
    axes.plot(
        at,
        -np.expm1(-at / gaps.mean()),
        color="#222222",
        linewidth=1,
        linestyle="--",
        label="Poisson of the same rate",
    )
    axes.set(xscale="log", xlabel="gap, s", ylabel="share of gaps up to it")
    axes.set(xlim=(at[0], at[-1]), ylim=(0, 1.02))
    label = f"CV {gaps.std() / gaps.mean():.2f}"
    if below / len(gaps) >= 0.005:
        label += f", {below / len(gaps):.0%} are 0"
    axes.legend(title=label, fontsize=8, title_fontsize=8, loc="upper left", **_LEGEND)


def _lengths(axes: Axes, what: str, lengths: list[int], colour: str) -> None:
    axes.set_title(f"{what} lengths", loc="left", fontsize=10)
    low, high = min(lengths), max(lengths)
    typical_low, typical_high = np.percentile(lengths, (1, 99))
    if typical_high > 50 * typical_low:
        edges = np.geomspace(low, high + 1, 50)
        axes.set_xscale("log")
    else:
        edges = np.linspace(low, high + 1, min(50, high - low + 1) + 1)
    axes.hist(lengths, edges.tolist(), color=colour, alpha=0.85)
    figures = Distribution.of(lengths)
    for value, style, name in (
        (figures.mean, "-", "mean"),
        (figures.p50, "--", "P50"),
        (figures.p99, ":", "P99"),
    ):
        axes.axvline(
            value, color="#222222", linewidth=1, linestyle=style, label=f"{name} {value:,.0f}"
        )
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set(xlabel="tokens", ylabel="requests")
    axes.legend(fontsize=8, **_LEGEND)


def _nice(value: float) -> float:
    """The smallest of 1, 2, 5 times a power of ten that is at least `value`."""
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value * 0.999))
