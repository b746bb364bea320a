"""A decode step as a picture, as OrbitFlow's Fig. 3: layers and stalls above, copies below."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from tokenflow_sgl.cli.plan_output import Planned

_STALL = "#d62728"
_COMPUTE = "#cfe3f5"
_WAITING = "0.9"
_MOST_ROWS = 24
"""Streams that are drawn: those that copy most."""


def draw(found: Planned, path: Path) -> None:
    """Write the picture; the file name's ending decides the format. Some stream must run."""
    timeline = found.timeline
    assert timeline is not None
    runs = found.runs
    moved: dict[int, float] = {}
    for copy in timeline.copies:
        moved[copy.stream] = moved.get(copy.stream, 0.0) + float(
            found.plan.sizes[runs[copy.stream]]
        )
    rows = sorted(sorted(moved, key=lambda stream: -moved[stream])[:_MOST_ROWS])
    figure = Figure(figsize=(12.0, 2.2 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    _layers(axes, found)
    _copies(axes, found, rows)
    names = [f"stream {runs[stream] + 1}" for stream in rows]
    axes.set_yticks([0.0, *(-1.0 - row for row in range(len(rows)))], ["device", *names])
    axes.set_ylim(-0.6 - len(rows), 0.6)
    axes.set_xlim(0.0, 1e3 * timeline.seconds)
    axes.set_xlabel("ms from the beginning of the decode step")
    used, total = (found.tokens_of(blocks) for blocks in (found.plan.blocks, found.machine.memory))
    axes.set_title(
        f"{found.profile.model} on {found.profile.device}: a step of "
        f"{1e3 * timeline.seconds:.1f} ms, {1e3 * timeline.stalled:.1f} ms of it stalls; "
        f"{used:,.0f} of {total:,.0f} KV tokens"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        handles=[
            Patch(facecolor=_COMPUTE, edgecolor="0.5", label="a layer computes"),
            Patch(facecolor=_STALL, label="the device stalls"),
            Patch(facecolor="0.6", edgecolor="0.2", label="KV of that layer is copied"),
            Patch(facecolor=_WAITING, label="the copy waits for the link"),
        ],
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
    )
    figure.savefig(path, dpi=130)


def _layers(axes: Axes, found: Planned) -> None:
    timeline = found.timeline
    assert timeline is not None
    # A label fits where a layer is no narrower than two digits.
    wide = float(found.machine.compute.min()) > timeline.seconds / 90
    for index, (start, stall) in enumerate(zip(timeline.start, timeline.stall, strict=True)):
        start, stall = 1e3 * float(start), 1e3 * float(stall)
        width = 1e3 * float(found.machine.compute[index])
        axes.barh(0.0, width, 0.7, start, color=_COMPUTE, edgecolor="0.5", linewidth=0.5)
        if stall > 0.0:
            axes.barh(0.0, stall, 0.7, start - stall, color=_STALL)
        if wide or (index + 1) % 4 == 0:
            axes.text(start + width / 2, 0.0, str(index + 1), ha="center", va="center", fontsize=7)


def _copies(axes: Axes, found: Planned, rows: list[int]) -> None:
    timeline = found.timeline
    assert timeline is not None
    colours = matplotlib.colormaps["Set2"]
    for copy in timeline.copies:
        if copy.stream not in rows:
            continue
        row = rows.index(copy.stream)
        end = copy.pieces[-1].end
        axes.barh(
            -1.0 - row, 1e3 * (end - copy.ready), 0.5, 1e3 * copy.ready, color=_WAITING, zorder=1
        )
        for piece in copy.pieces:
            begin, width = 1e3 * piece.begin, 1e3 * (piece.end - piece.begin)
            axes.barh(
                *(-1.0 - row, width, 0.5, begin),
                color=colours(row % 8),
                edgecolor="0.2",
                linewidth=0.5,
                zorder=2,
            )
        if end - copy.ready > timeline.seconds / 60:
            middle = 1e3 * (copy.ready + end) / 2
            axes.text(
                middle, -1.0 - row, str(copy.layer), ha="center", va="center", fontsize=7, zorder=3
            )
