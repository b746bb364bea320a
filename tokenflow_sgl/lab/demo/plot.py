"""The picture of the demo, after Fig. 18 of the TokenFlow paper.

Top: tokens over time, one line per reader, against the pace of reading. Bottom: the same burst as
each reader lives it, one row per reader: waiting for the first token, reading, stalled. The first
server is on the left, the second on the right, on the same axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from tokenflow_sgl.lab.report import Figures
from tokenflow_sgl.qos import play

_WAITING, _READING, _STALLED = "#c9ced6", "#4c8dd6", "#d1352b"
_RATES = colormaps["viridis"].resampled(256)(np.linspace(0.0, 0.85, 256))  # no pale yellow


def draw(path: Path, runs: Sequence[Figures], subtitle: str) -> None:
    """Write the picture of the runs, one column each, to `path` (PNG, SVG or PDF)."""
    # Figure, not pyplot: no global state, no display.
    figure = Figure(figsize=(6.2 * len(runs), 8.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(
        2, len(runs), sharex=True, sharey="row", squeeze=False, height_ratios=(1.15, 1)
    )
    rates = np.concatenate([run.judged.recording.rate for run in runs])
    colours = ScalarMappable(Normalize(rates.min(), rates.max()), ListedColormap(_RATES))
    for run, tokens, readers in zip(runs, axes[0], axes[1], strict=True):
        _tokens_over_time(tokens, run, colours)
        _reader_rows(readers, run)
    # Reading goes on for longer than the burst, but nothing can happen to it any more.
    end_s = max(run.judged.recording.times.max() for run in runs)
    longest = max(run.judged.recording.counts.max() for run in runs)
    axes[0, 0].set(xlim=(0, end_s * 1.15), ylim=(0, longest * 1.03), ylabel="tokens received")
    axes[1, 0].set(ylabel="readers, in the order of asking")
    figure.legend(
        handles=[
            Patch(color=_WAITING, label="waits for the first token"),
            Patch(color=_READING, label="reads"),
            Patch(color=_STALLED, label="stalled: has read all that came"),
        ],
        loc="outside lower center",
        ncols=3,
        frameon=False,
    )
    figure.colorbar(colours, ax=axes[0].tolist(), label="reading rate, tokens/s", pad=0.01)
    figure.suptitle(subtitle, fontsize=11)
    figure.savefig(path)


def _tokens_over_time(axes: Axes, run: Figures, colours: ScalarMappable) -> None:
    recording = run.judged.recording
    for row in range(len(recording)):
        times = recording.tokens(row)
        axes.step(
            times,
            np.arange(1, times.size + 1),
            where="post",
            color=colours.to_rgba(recording.rate[row]),
            linewidth=0.9,
            alpha=0.8,
        )
    slowest, fastest = float(recording.rate.min()), float(recording.rate.max())
    longest = int(recording.counts.max())
    for rate in (slowest, fastest):
        axes.plot([0, longest / rate], [0, longest], color="black", linewidth=1.6)
    pace = f"reading from the start, at {slowest:g} and {fastest:g} tokens/s"
    axes.legend(handles=[Line2D([], [], color="black", label=pace)], loc="upper left", fontsize=8)
    ttft = run.latency.ttft
    axes.set_title(
        f"{run.label}: first token after {ttft.mean:.1f} s on average, {ttft.p99:.1f} s at P99"
    )
    axes.grid(alpha=0.25)


def _reader_rows(axes: Axes, run: Figures) -> None:
    recording = run.judged.recording
    for row, asked in enumerate(recording.scheduled.tolist()):
        playback = play(recording.tokens(row), float(recording.rate[row]))
        first, last = float(playback.consumed[0]), float(playback.consumed[-1])
        stalled = playback.stalls > 0.0
        # A stall ends when its token is read at last.
        stalls = zip(
            (playback.consumed - playback.stalls)[stalled].tolist(),
            playback.stalls[stalled].tolist(),
            strict=True,
        )
        bar = (row, 1.0)
        axes.broken_barh([(asked, first - asked)], bar, color=_WAITING, linewidth=0)
        axes.broken_barh([(first, last - first)], bar, color=_READING, linewidth=0)
        axes.broken_barh(list(stalls), bar, color=_STALLED, linewidth=0)
    axes.set(xlabel="virtual seconds since the burst began", ylim=(len(recording), 0))
    axes.set_title(
        f"{run.readers.stall_seconds:.1f} s of stalls in all, "
        f"{run.readers.stall_count:,} longer than {run.options.stall_threshold_s:g} s"
    )
