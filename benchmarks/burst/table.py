"""Writes the results of `run.py` into docs/paper-setting.md: `python benchmarks/burst/table.py`."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from typing import Any

from run import KNOWN, PAIR, RESULTS, ROOT
from suite import CONTENDERS, LOADS

PAGE = ROOT / "docs" / "paper-setting.md"
BASELINE = "stock"

Run = dict[str, Any]
Figure = Callable[[Run], float]

COLUMNS: dict[str, Figure] = {
    "effective tokens/s": lambda run: run["tokenflow"]["effective_throughput"],
    "tokens/s": lambda run: run["tokenflow"]["token_throughput"],
    "mean TTFT, s": lambda run: run["tokenflow"]["ttft_s"]["mean"],
    "P99 TTFT, s": lambda run: run["tokenflow"]["ttft_s"]["p99"],
    "stall, s": lambda run: run["tokenflow"]["stall_per_request_s"]["mean"],
    "waiting, s": lambda run: (
        run["tokenflow"]["ttft_s"]["mean"] + run["tokenflow"]["stall_per_request_s"]["mean"]
    ),
}
"""Figures of the tables, each followed by its ratio to stock."""


def main() -> None:
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    page = PAGE.read_text()
    for name, names in (("pairs", _both(PAIR)), ("contenders", _both(CONTENDERS))):
        chosen = [name for name in LOADS if name in results]
        if name == "contenders":
            others = {*names} - {*_both(PAIR)}
            chosen = [load for load in chosen if others & set(results[load]["runs"])]
        page = replace_table(page, name, table(results, chosen, names))
    PAGE.write_text(page)


def _both(names: Iterable[str]) -> tuple[str, ...]:
    """Runs of these names whose servers did not know the lengths, and then those that did."""
    names = tuple(names)
    return (*names, *(name + KNOWN for name in names))


def replace_table(page: str, name: str, text: str) -> str:
    """The page with `text` between the markers of that name; as it was, if it has none."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    if begin not in page:
        return page
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{text}\n{end}{tail}"


def table(
    results: dict[str, Any],
    loads: list[str],
    names: tuple[str, ...],
    columns: dict[str, Figure] = COLUMNS,
) -> str:
    """A row per workload and run of these names, with ratios to stock that knew as much."""
    heads = ["workload", "run", "lengths", *columns, "commit"]
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("| --- | --- | --- |" + " ---: |" * len(columns) + " --- |")
    for load in loads:
        runs = results[load]["runs"]
        for name in names:
            if name in runs:
                baseline = runs.get(BASELINE + (KNOWN if name.endswith(KNOWN) else ""))
                if baseline is not None and lengths(baseline) != lengths(runs[name]):
                    baseline = None
                lines.append(_row(load, name, runs[name], baseline, columns))
    return "\n".join(lines) + "\n"


def knew_lengths(run: Run) -> bool:
    """Whether the server knew when each answer would end; before it was an option, it did."""
    return bool(run["run"]["options"].get("known_lengths", True))


def lengths(run: Run) -> str:
    """What the server knew of the answers' lengths, in a word."""
    return "known" if knew_lengths(run) else "unknown"


def label(load: str, run: Run) -> str:
    """The workload, and how much of it was run."""
    _, scaled, scale = run.get("replay", [""])[0].partition("?scale=")
    return f"{load}, {float(scale):.0%} of it" if scaled else load


def _row(load: str, name: str, run: Run, baseline: Run | None, columns: dict[str, Figure]) -> str:
    name = name.removesuffix(KNOWN)
    cells = [label(load, run), name if run["run"]["valid"] else f"{name} (INVALID)", lengths(run)]
    for figure in columns.values():
        value = figure(run)
        ratio = math.nan
        if baseline is not None and run is not baseline:
            ratio = value / figure(baseline) if figure(baseline) else math.nan
        shown = f"{value:,.0f}" if value >= 100 else f"{value:.2f}"
        cells.append(shown if math.isnan(ratio) else f"{shown} ({ratio:.2f}x)")
    return "| " + " | ".join([*cells, run["commit"]]) + " |"


if __name__ == "__main__":
    main()
