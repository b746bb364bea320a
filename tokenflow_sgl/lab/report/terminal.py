"""A report for the terminal: rich tables of one run, or of several against the first."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.lab.report.compare import Against, Change, Comparison, Verdict
from tokenflow_sgl.lab.report.conclusion import Conclusion, conclusions
from tokenflow_sgl.lab.report.figure_kind import Section
from tokenflow_sgl.lab.report.held_kv import held_kv, kv_sentence
from tokenflow_sgl.lab.report.overview import (
    LATENCY_COLUMNS,
    Row,
    latency_rows,
    lengths_note,
    section_rows,
    validity_rows,
)
from tokenflow_sgl.lab.report.report_options import Options
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.text import interval, plain

_MARKS = {
    Verdict.better: ("▲ better", "green"),
    Verdict.worse: ("▼ worse", "red"),
    Verdict.unclear: ("no clear difference", "dim"),
    Verdict.unknown: ("not measured", "dim"),
}


_BRIEF_MARKS = {**_MARKS, Verdict.unclear: ("unclear", "dim")}
_VALUE_WIDTH = 13
_ENDLESS = 1000


def run_view(figures: Figures) -> RenderableType:
    """Everything about one run."""
    return Group(
        _heading(figures),
        *_banner(figures),
        Text(kv_sentence(held_kv(figures.judged.recording), gained=True), "bold"),
        Padding(_Latency(figures), (1, 0)),
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


def comparison_view(comparison: Comparison, *, everything: bool = False) -> RenderableType:
    """What each run does for the trace, then its figures against the baseline's.

    Args:
        comparison: The runs.
        everything: Also show each figure without a clear difference.
    """
    warned = [banner for figures in comparison.runs for banner in _banner(figures)]
    unpaired = [
        Text(f"{other.figures.label}: not the same trace, unpaired: {other.mismatch}.", "yellow")
        for other in comparison.others
        if other.mismatch
    ]
    tables = [_Against(comparison, against, everything) for against in comparison.others]
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
    return Group(*map(_conclusion, conclusions(comparison)), *warned, *unpaired, *tables, note)


def _conclusion(found: Conclusion) -> Text:
    text = Text(f"{found.name}: ", "bold")
    return text.append(f"{found.text}\n", "not bold")


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


class _Latency:
    """Latencies of a run: a row each, or where that is too wide a column each."""

    def __init__(self, figures: Figures) -> None:
        self._rows = [LATENCY_COLUMNS, *latency_rows(figures)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, as wide as fits the terminal."""
        whole = self._table([list(row) for row in self._rows])
        if _fits(whole, console, options):
            yield whole
            return
        heads = [name.partition(",")[0].partition(" (")[0] for name, *_ in self._rows]
        heads[1:] = [
            head if heads.count(head) == 1 else f"{head}, {name.split()[-1]}"
            for head, (name, *_) in zip(heads[1:], self._rows[1:], strict=True)
        ]
        turned = [list(cells) for cells in zip(*self._rows, strict=True)]
        turned[0] = heads
        yield self._table(turned)

    @staticmethod
    def _table(rows: list[list[str]]) -> Table:
        table = _table("Latency")
        for number, head in enumerate(rows[0]):
            left = number == 0 or head == "unit"
            table.add_column(head, justify="left" if left else "right", no_wrap=len(head) < 12)
        for row in rows[1:]:
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


class _Against:
    """A run beside the baseline, with the verdict of each figure."""

    def __init__(self, comparison: Comparison, against: Against, everything: bool) -> None:
        self._runs = comparison.baseline, against.figures
        self._changes = [
            change for change in against.changes if change.verdict is not Verdict.unknown
        ]
        self._everything = everything

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table, with short words where whole ones are too wide."""
        whole = self._table(brief=False)
        yield whole if _fits(whole, console, options) else self._table(brief=True)
        folded = [change for change in self._changes if not self._shown(change)]
        if folded:
            yield Text(
                f"No clear difference in {len(folded)} of {len(self._changes)} figures; "
                "--all shows them.",
                "dim",
            )
        yield Text()

    def _shown(self, change: Change) -> bool:
        return self._everything or change.verdict is not Verdict.unclear

    def _table(self, *, brief: bool) -> Table:
        baseline, other = self._runs
        table = _table(f"{other.label} against {baseline.label}")
        table.padding = (0, 1, 0, 0) if brief else (0, 3, 0, 0)
        table.add_column("", overflow="fold")
        for figures in self._runs:
            head = Text(figures.label, "bold red" if figures.state else "bold")
            # A name may be long: it goes on in the next line, and the figures below stay whole.
            table.add_column(head, justify="right", overflow="fold", max_width=_VALUE_WIDTH)
        table.add_column("ratio", justify="right", no_wrap=True)
        table.add_column("", no_wrap=True)
        done = [f"{one.requests.completed:,} / {one.requests.counted:,}" for one in self._runs]
        table.add_row("completed / requests", *done)
        for section in Section:
            rows = [
                change
                for change in self._changes
                if change.figure.section is section and self._shown(change)
            ]
            if rows:
                table.add_row(Text(section.value, "bold"))
            for change in rows:
                table.add_row(*_change_cells(change, baseline.options, brief=brief))
            if rows:
                table.add_section()
        return table


def _change_cells(change: Change, options: Options, *, brief: bool) -> tuple[RenderableType, ...]:
    figure = change.figure
    mark, style = (_BRIEF_MARKS if brief else _MARKS)[change.verdict]
    name = figure.title(options) + (f", {figure.unit}" if figure.unit else "")
    ratio = interval(change.ratio, change.ratio_low, change.ratio_high)
    return (
        Text(name if brief else f"  {name}"),
        Text(figure.show(change.baseline)),
        Text(figure.show(change.value)),
        Text(ratio.replace(" to ", "-") if brief else ratio),
        Text(mark, style),
    )


def _fits(table: Table, console: Console, options: ConsoleOptions) -> bool:
    """Whether a table has all the room that it wants."""
    endless = options.update(max_width=_ENDLESS)
    return Measurement.get(console, endless, table).maximum <= options.max_width


def _table(title: str) -> Table:
    return Table(
        title=Text(title, "bold"),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
