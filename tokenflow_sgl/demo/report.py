"""The demo's results as a table for the terminal and as JSON for machines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from tokenflow_sgl.demo.measure import BurstRun, Row

_EVEN = 0.03
"""Ratios this close to 1 are shown as neither better nor worse."""


def result_table(servers: tuple[str, str], bursts: int, rows: Sequence[Row]) -> Table:
    """Return the comparison of the two servers (their names), one row a figure.

    The ratio is green where the second server is better and red where it is worse.
    """
    first, second = servers
    title = "One burst" if bursts == 1 else f"Medians of {bursts} bursts; stalled: means"
    table = Table(title=title, title_justify="left", show_edge=False)
    table.add_column("")
    table.add_column(first, justify="right")
    table.add_column(second, justify="right", style="bold")
    table.add_column("unit")
    table.add_column(f"{second} / {first}", justify="right")
    for row in rows:
        table.add_row(
            row.label, _number(row.first), _number(row.second), row.unit, _ratio_text(row)
        )
    return table


def write_json(
    path: Path,
    setting: dict[str, Any],
    runs: Sequence[BurstRun],
    rows: Sequence[Row],
    identical: int,
) -> None:
    """Write everything that was measured, down to each token's arrival time in seconds."""
    result = {
        "setting": setting,
        "comparison": [{**dataclasses.asdict(row), "ratio": _finite(row.ratio)} for row in rows],
        "identical_answers": identical,
        "runs": [
            {
                "server": run.server,
                "figures": _finite(dataclasses.asdict(run.qos)),
                "streams": [
                    {
                        "rate": record.request.rate,
                        "prompt_tokens": len(record.request.prompt_ids),
                        "output_tokens": len(record.output_ids),
                        "sent_s": round(record.sent_s, 6),
                        "ttft_s": round(stream.ttft, 6),
                        "stall_s": round(stream.stall_seconds, 6),
                        "token_times_s": [round(time_s, 6) for time_s in record.token_times_s],
                    }
                    for record, stream in zip(run.records, run.streams, strict=True)
                ],
            }
            for run in runs
        ],
    }
    path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n")


def _number(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _ratio_text(row: Row) -> str:
    if not math.isfinite(row.ratio):
        return "-"
    text = f"{row.ratio:.2f}x"
    if abs(row.ratio - 1) <= _EVEN:
        return text
    better = (row.ratio > 1) == row.higher_is_better
    return f"[green]{text}[/]" if better else f"[red]{text}[/]"


def _finite(value: Any) -> Any:
    """Return ``value`` with None for what JSON cannot say (NaN, infinity), at any depth."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
