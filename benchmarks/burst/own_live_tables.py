"""Writes the results of `own_live.py` into README.md of this folder.

Call it alone: `python benchmarks/burst/own_live_tables.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compared import (
    DEFAULTS,
    EFFECTIVE,
    FIGURES,
    TOKENFLOW,
    Figure,
    Run,
    between,
    ratio_cell,
    table,
    times,
)

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "results" / "own_memory_live"
PAGE = HERE / "README.md"

LABELS = {
    "4090-a": "burst of 60",
    "4090-b": "burst of 80",
    "h200-a": "burst of 400",
    "h200-b": "burst of 200",
    "azure-4x": "Azure at 4x, five minutes of the trace",
    "mooncake": "Mooncake, three minutes",
}
LEFT_OUT = ("first text and stalls, mean", "gap between tokens, P99")
"""What follows from the others, or what no reader feels."""
SHOWN = [figure for figure in (*FIGURES, EFFECTIVE) if figure.name not in LEFT_OUT]


def write_tables() -> None:
    """Write the tables between their markers into the page."""
    found = {
        name: json.loads(path.read_text())["runs"]
        for name in LABELS
        if (path := RESULTS / f"{name}.json").exists()
    }
    page = PAGE.read_text()
    for marker, make in (("own-live", live_table), ("own-live-simulated", simulated_table)):
        page = between(page, marker, make(found))
    PAGE.write_text(page)


def live_table(found: dict[str, dict[str, Any]]) -> str:
    """A row per workload and figure: the values, the best setting, and the simulated ratio."""
    heads = ["workload", "figure", "defaults", "best of SGLang's settings", "which", "tokenflow"]
    heads += ["over the best", "over the best, simulated"]
    rows = []
    for name, runs in found.items():
        live, simulated = _of(runs, "figures"), _of(runs, "simulated")
        if TOKENFLOW not in live or len(live) == 1:
            continue
        for figure in SHOWN:
            best = figure.best(live)
            cells = [f"`{name}`: {LABELS[name]}", figure.name]
            cells += [_shown(figure, live, each) for each in (DEFAULTS, best)]
            cells += [best, _shown(figure, live, TOKENFLOW), ratio_cell(figure, live, best)]
            cells.append(times(figure.ratio(simulated, figure.best(simulated))))
            rows.append(cells)
    return table(heads, rows, left=2)


def simulated_table(found: dict[str, dict[str, Any]]) -> str:
    """A row per run: each figure measured, and the simulator's of the same requests in brackets."""
    heads = ["workload", "setting", *(figure.name for figure in SHOWN), "whole answers", "commit"]
    rows = []
    for name, runs in found.items():
        for setting, run in runs.items():
            answers = run["answers"]
            rows.append(
                [
                    f"`{name}`",
                    setting,
                    *(_beside(figure, run["figures"], run["simulated"]) for figure in SHOWN),
                    f"{answers['of_the_length_asked_for']:,} of {answers['requests']:,}",
                    run["commit"],
                ]
            )
    return table(heads, rows, left=2)


def _shown(figure: Figure, runs: dict[str, Run], setting: str) -> str:
    """The figure under a setting; a dash if it was not run."""
    return figure.show(figure.of(runs[setting])) if setting in runs else "-"


def _beside(figure: Figure, live: Run, simulated: Run) -> str:
    measured, shown = figure.show(figure.of(live)), figure.show(figure.of(simulated))
    if not figure.ratios or not figure.of(live):
        return f"{measured} ({shown})"
    return f"{measured} ({figure.of(simulated) / figure.of(live) - 1:+.1%})"


def _of(runs: dict[str, Any], key: str) -> dict[str, Run]:
    return {setting: run[key] for setting, run in runs.items()}


if __name__ == "__main__":
    write_tables()
