"""A report for the terminal: rich tables of one run, or of several against the first."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.report.catalogue import CATALOGUE, Section
from tokenflow_sgl.report.compare import Change, Comparison, Verdict
from tokenflow_sgl.report.overview import (
    LATENCY_COLUMNS,
    Row,
    latency_rows,
    lengths_note,
    section_rows,
    validity_rows,
)
from tokenflow_sgl.report.report_options import Options
from tokenflow_sgl.report.run_figures import Figures
from tokenflow_sgl.report.text import interval, plain

_MARKS = {
    Verdict.better: ("▲ better", "green"),
    Verdict.worse: ("▼ worse", "red"),
    Verdict.unclear: ("no clear difference", "dim"),
    Verdict.unknown: ("not measured", "dim"),
}


def run_view(figures: Figures) -> RenderableType:
    """Everything about one run."""
    return Group(
        _heading(figures),
        *_banner(figures),
        Padding(_latency_table(figures), (1, 0)),
        Columns(
            [
                _pairs("Throughput", section_rows(figures, Section.throughput)),
                _pairs("Reader", section_rows(figures, Section.reader)),
                _pairs("SLO", section_rows(figures, Section.slo)),
                _pairs("Validity", validity_rows(figures)),
            ],
            padding=(0, 4),
        ),
    )


def comparison_view(comparison: Comparison) -> RenderableType:
    """Runs side by side, then each against the baseline."""
    warned = [banner for figures in comparison.runs for banner in _banner(figures)]
    unpaired = [
        Text(f"{other.figures.label}: not the same trace, unpaired: {other.mismatch}.", "yellow")
        for other in comparison.others
        if other.mismatch
    ]
    tables = [_against_table(comparison, position) for position in range(len(comparison.others))]
    options = comparison.baseline.options
    note = Text(
        f"Ratios to {comparison.baseline.label}, with {options.confidence:.0%} intervals of "
        f"{options.resamples:,} bootstrap samples over requests (seed {options.seed}). They say "
        "how much requests differ, not how much a second run would. Of many figures, about "
        f"{1 - options.confidence:.0%} differ by chance alone.",
        "dim",
    )
    known = lengths_note(comparison.runs)
    if known is not None:
        note.append(f"\n{known}")
    return Group(*warned, *unpaired, *tables, note)


def _heading(figures: Figures) -> Text:
    info = figures.info
    trace = plain(str(info.trace.get("name", "unnamed")), 40)
    text = Text(figures.label, "bold red" if figures.state else "bold")
    text.append(f"  {plain(info.source, 20)} of trace {trace}", "not bold default")
    if info.started_at:
        text.append(f", started {plain(info.started_at, 40)}", "not bold default")
    return text


def _banner(figures: Figures) -> list[Panel]:
    if not figures.warnings:
        return []
    lines = "\n".join(plain(reason, 300) for reason in figures.warnings)
    return [
        Panel(
            Text(f"Do not trust these figures.\n{lines}"),
            title=Text(figures.label, "bold white on red"),
            border_style="bold red",
            title_align="left",
        )
    ]


def _latency_table(figures: Figures) -> Table:
    table = _table("Latency")
    for number, head in enumerate(LATENCY_COLUMNS):
        table.add_column(head, justify="left" if number < 2 else "right", no_wrap=True)
    for row in latency_rows(figures):
        table.add_row(*row)
    return table


def _pairs(title: str, rows: list[Row]) -> Table:
    table = _table(title)
    table.show_header = False
    table.add_column("")
    table.add_column("", justify="right")
    for label, value in rows:
        loud = value.startswith("NO: ") or label.startswith("failed")
        table.add_row(Text(label), Text(value), style="red" if loud else None)
    return table


def _against_table(comparison: Comparison, position: int) -> Table:
    against = comparison.others[position]
    table = _table(f"{against.figures.label} against {comparison.baseline.label}")
    table.add_column("", no_wrap=True)
    for figures in (comparison.baseline, against.figures):
        head = Text(figures.label, "bold red" if figures.state else "bold")
        table.add_column(head, justify="right")
    table.add_column("ratio", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    completed = [
        f"{figures.requests.completed:,} / {figures.requests.counted:,}"
        for figures in (comparison.baseline, against.figures)
    ]
    table.add_row("completed / requests", *completed)
    for section in Section:
        members = [figure for figure in CATALOGUE if figure.section is section]
        rows = [change for change in against.changes if change.figure in members]
        rows = [change for change in rows if change.verdict is not Verdict.unknown]
        if rows:
            table.add_row(Text(section.value, "bold"))
        for change in rows:
            table.add_row(*_change_cells(change, comparison.baseline.options))
        if rows:
            table.add_section()
    return table


def _change_cells(change: Change, options: Options) -> tuple[RenderableType, ...]:
    figure = change.figure
    mark, style = _MARKS[change.verdict]
    return (
        Text(f"  {figure.title(options)}" + (f", {figure.unit}" if figure.unit else "")),
        Text(figure.show(change.baseline)),
        Text(figure.show(change.value)),
        Text(interval(change.ratio, change.ratio_low, change.ratio_high)),
        Text(mark, style),
    )


def _table(title: str) -> Table:
    return Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
