"""A picture of a sweep: what each setting costs a reader in waiting, and what it yields."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tokenflow_sgl.lab.sim.study.sweep import COLUMNS

_BAR, _GAP = 0.28, 1.6
"""Inches per setting, and for title and axis."""


def plot_sweep(table: pa.Table, path: Path, title: str) -> None:
    """Write a PNG: waiting, as TTFT and stalls on top of each other, and effective throughput."""
    rows = table.to_pylist()
    names = [column for column in table.column_names if column not in COLUMNS]
    labels = [", ".join(f"{name} {_short(row[name])}" for name in names) for row in rows]
    places = range(len(rows))
    figure = Figure(figsize=(10, _GAP + _BAR * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    waiting, yielded = figure.subplots(1, 2, sharey=True)
    ttft = [row["mean_ttft_s"] for row in rows]
    waiting.barh(places, ttft, color="#4878a8", label="to the first token")
    stalls = [row["mean_stall_s"] for row in rows]
    waiting.barh(places, stalls, left=ttft, color="#d1605e", label="in stalls")
    waiting.set_xlabel("mean waiting per reader, s")
    waiting.set_yticks(list(places), labels)
    waiting.invert_yaxis()
    yielded.barh(places, [row["token_throughput"] for row in rows], color="#c8c8c8", label="all")
    effective = [row["effective_throughput"] for row in rows]
    yielded.barh(places, effective, height=0.5, color="#6a9f58", label="effective")
    yielded.set_xlabel("tokens per second")
    for axes in (waiting, yielded):
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=2, frameon=False, fontsize="small"
        )
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    figure.savefig(path, dpi=120)


def _short(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"
