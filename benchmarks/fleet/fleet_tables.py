"""What the tables of fleets have in common: the figures of a run, its cells, and its page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from table import replace_table

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.runs import Run

HEADS = (
    *("mean TTFT, s", "P99 TTFT, s", "stall, s"),
    *("readers that stall", "effective tokens/s"),
)


def experienced(run: Run) -> dict[str, float]:
    """What the readers of a run got."""
    judged = figures(run)
    ttft, readers = judged.latency.ttft, judged.readers
    return {
        "mean_ttft_s": ttft.mean,
        "p99_ttft_s": ttft.p99,
        "stall_mean_s": readers.stall_mean,
        "stalled_share": readers.stalled_share,
        "effective": judged.throughput.effective,
    }


def cells(found: dict[str, Any]) -> str:
    """That of a row, below `HEADS`."""
    return (
        f"{found['mean_ttft_s']:.3f} | {found['p99_ttft_s']:.2f} | "
        f"{found['stall_mean_s']:.3f} | {found['stalled_share']:.1%} | {found['effective']:,.0f}"
    )


def head(*columns: str, words: int) -> list[str]:
    """The first lines of a table; so many columns, from the left, are words."""
    marks = " --- |" * words + " ---: |" * (len(columns) - words)
    return ["| " + " | ".join(columns) + " |", "|" + marks]


def put(page: Path, name: str, table: str) -> None:
    """Put a table into a page, between its marks; a page without them stays as it is."""
    text = replace_table(page.read_text(encoding="utf-8"), name, table)
    page.write_text(text, encoding="utf-8")
