"""Comparisons and single runs as Markdown tables, for results pages and issues."""

from __future__ import annotations

from collections.abc import Sequence

from tokenflow_sgl.lab.report.catalogue import BY_KEY, CATALOGUE
from tokenflow_sgl.lab.report.compare import Change, Comparison, Verdict
from tokenflow_sgl.lab.report.figure_kind import Figure
from tokenflow_sgl.lab.report.overview import lengths_note
from tokenflow_sgl.lab.report.report_options import ReportError
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.text import interval, plain

_MARKS = {
    Verdict.better: "▲ better",
    Verdict.worse: "▼ worse",
    Verdict.unclear: "no clear difference",
    Verdict.unknown: "not measured",
}


def markdown_table(runs: Figures | Comparison, keys: Sequence[str] | None = None) -> str:
    """Return a table, one row a figure, with a sentence under it for each run that does not count.

    Args:
        runs: One run, or runs against a baseline (ratios with their intervals).
        keys: Keys of the figures to show, in this order; default: all that were measured.

    Raises:
        ReportError: A key that no figure has.
    """
    members: Sequence[Figures] = [runs] if isinstance(runs, Figures) else runs.runs
    others = [] if isinstance(runs, Figures) else runs.others
    heads = ["figure", "unit", *(figures.label for figures in members)]
    heads += [f"{figures.label} / {members[0].label}" for figures in members[1:]]
    lines = [_row(heads), "| --- | --- |" + " ---: |" * (len(heads) - 2)]
    if keys is None:
        done = [
            f"{figures.requests.completed:,} / {figures.requests.counted:,}" for figures in members
        ]
        lines.append(_row(["completed", "requests", *done, *("" for _ in others)]))
    for figure in _chosen(members, keys):
        at = CATALOGUE.index(figure)
        cells = [figure.title(members[0].options), figure.unit]
        cells += [figure.show(figure.value(figures)) for figures in members]
        cells += [_ratio(other.changes[at]) for other in others]
        lines.append(_row(cells))
    lines += _notes(runs, members)
    return "\n".join(lines) + "\n"


def _chosen(members: Sequence[Figures], keys: Sequence[str] | None) -> list[Figure]:
    if keys is not None:
        unknown = [key for key in keys if key not in BY_KEY]
        if unknown:
            raise ReportError(
                f"no figure is called {unknown[0]}; there are {', '.join(sorted(BY_KEY))}"
            )
        return [BY_KEY[key] for key in keys]
    return [
        figure
        for figure in CATALOGUE
        if any(figure.show(figure.value(figures)) != "-" for figures in members)
    ]


def _ratio(change: Change) -> str:
    if change.verdict is Verdict.unknown:
        return _MARKS[change.verdict]
    shown = interval(change.ratio, change.ratio_low, change.ratio_high)
    return f"{shown}, {_MARKS[change.verdict]}"


def _notes(runs: Figures | Comparison, members: Sequence[Figures]) -> list[str]:
    notes = [
        f"{_cell(figures.label)}: {_cell(reason)}"
        for figures in members
        for reason in figures.warnings
    ]
    if isinstance(runs, Comparison):
        notes += [
            f"{_cell(other.figures.label)}: not the same trace, unpaired: {_cell(other.mismatch)}."
            for other in runs.others
            if other.mismatch
        ]
    known = lengths_note(members)
    if known is not None:
        notes.append(_cell(known))
    return [line for note in notes for line in ("", note)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    """Escape what Markdown (and the HTML it may become) would take as markup."""
    shown = plain(text, 400).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{letter}" if letter in "\\|`*_[]" else letter for letter in shown)
