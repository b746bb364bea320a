"""A trace and its figures for the terminal and as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.lab.traces.request import Trace
from tokenflow_sgl.lab.traces.stats import Distribution, TraceStats


def to_json(trace: Trace, figures: TraceStats) -> dict[str, Any]:
    """A trace's name, accounting, notes and figures, ready for JSON."""
    return {
        "name": trace.name,
        "accounting": {
            "rows": trace.accounting.rows,
            "emitted": trace.accounting.emitted,
            "dropped": dict(trace.accounting.dropped),
        },
        "notes": list(trace.notes),
        "stats": dataclasses.asdict(figures),
    }


def show(console: Console, trace: Trace, figures: TraceStats) -> None:
    """Print a trace's name, notes, accounting and figures."""
    console.print(trace.name, style="bold", markup=False, highlight=False)
    for note in trace.notes:
        console.print(Padding(Text(note), (0, 0, 0, 2)))

    rows = Table(title="Rows", title_justify="left", show_header=False, show_edge=False)
    rows.add_column("")
    rows.add_column("", justify="right")
    rows.add_row("read", f"{trace.accounting.rows:,}")
    for reason, count in trace.accounting.dropped.items():
        rows.add_row(Text(f"dropped: {reason}"), f"{count:,}")  # a reason is no markup
    rows.add_row("requests", f"{trace.accounting.emitted:,}")

    whole = Table(title="Arrivals", title_justify="left", show_header=False, show_edge=False)
    whole.add_column("")
    whole.add_column("", justify="right")
    whole.add_column("")
    for label, value, unit in _arrival_rows(figures):
        whole.add_row(label, "-" if value is None else _number(value), unit)

    lengths = Table(title="Per request", title_justify="left", show_edge=False)
    lengths.add_column("")
    for column in ("mean", "P50", "P90", "P99", "max"):
        lengths.add_column(column, justify="right")
    lengths.add_column("")
    for label, distribution, unit in _distributions(figures):
        if distribution is not None:
            lengths.add_row(
                label,
                *(
                    _number(value)
                    for value in (
                        distribution.mean,
                        distribution.p50,
                        distribution.p90,
                        distribution.p99,
                        distribution.max,
                    )
                ),
                unit,
            )
    for table in (rows, whole, lengths):
        console.print()
        console.print(table)


def _arrival_rows(figures: TraceStats) -> list[tuple[str, float | None, str]]:
    rows: list[tuple[str, float | None, str]] = [
        ("arrivals", figures.arrivals, "sessions and single requests"),
        ("span", figures.span_s, "s"),
        ("rate", figures.arrivals_per_s, "/s"),
        ("CV of the gaps", figures.interarrival_cv, "1: Poisson"),
    ]
    rows += [
        (f"dispersion, {bin_s} s", value, "1: Poisson")
        for bin_s, value in figures.dispersion.items()
    ]
    rows.append(("offered output", figures.offered_tokens_per_s, "tokens/s"))
    if figures.peak_reading_per_s is not None:
        rows.append(("peak reading", figures.peak_reading_per_s, "tokens/s"))
    if figures.shared_prefix is not None:
        rows.append(("shared prefix", 100 * figures.shared_prefix, "% of prompt tokens"))
    if figures.priority_updates:
        rows.append(("priority changes", figures.priority_updates, ""))
    return rows


def _distributions(figures: TraceStats) -> list[tuple[str, Distribution | None, str]]:
    return [
        ("prompt", figures.prompt_tokens, "tokens"),
        ("output", figures.output_tokens, "tokens"),
        ("limit", figures.limit_tokens, "tokens"),
        ("thinking", figures.reasoning_tokens, "tokens"),
        ("reader", figures.reader_rate, "tokens/s"),
        ("session", figures.turns, "turns"),
        ("think time", figures.think_s, "s"),
    ]


def _number(value: float) -> str:
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
