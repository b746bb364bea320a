"""The tables of `own_memory.py`: from its data to README.md and docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable
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
    short_cell,
    table,
    times,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks" / "results" / "own_memory.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"

LABELS = {
    "h200-a": "burst of 400",
    "h200-b": "burst of 200",
    "h200-c": "5 requests/s",
    "h200-d": "10 requests/s",
    "4090-a": "burst of 60",
    "4090-b": "burst of 80",
    "4090-c": "2 requests/s",
    "4090-d": "4 requests/s",
    "mooncake": "Mooncake, long prompts",
    "azure-4x": "Azure at 4x",
    "azure-1x": "Azure at its own speed",
}


def short_table(data: dict[str, Any]) -> str:
    """A row per workload: tokenflow against the best of SGLang's settings, and its defaults."""
    heads = ["workload", "KV tokens", "host memory", *(figure.name for figure in FIGURES)]
    rows = []
    for name, load in _loads(data):
        runs = load["draws"]["0"]
        cells = [f"`{name}`: {LABELS[name]}", f"{load['kv_tokens']:,}", f"{load['host_gb']:.0f} GB"]
        rows.append([*cells, *(short_cell(figure, runs) for figure in FIGURES)])
    return table(heads, rows, left=1)


FELT = (
    "first text, P99",
    "readers that stall",
    "served well",
    "gap between tokens, P99",
    "whole answer, mean",
)
"""The README's figures."""
FELT_BY = {
    "h200-c": "H200, 5 requests/s",
    "4090-a": "RTX 4090, burst of 60",
    "mooncake": "H200, Mooncake, long prompts",
    "azure-4x": "H200, Azure at 4x",
}
"""The README's workloads: a gain, a small device, and where prompts are the limit."""


def felt_table(data: dict[str, Any]) -> str:
    """The README's: a few workloads, and what a reader feels most."""
    felt = [figure for figure in FIGURES if figure.name in FELT]
    heads = ["workload", "host memory", *(figure.name for figure in felt)]
    rows = []
    for name, label in FELT_BY.items():
        load = data["workloads"][name]
        runs = load["draws"]["0"]
        cells = [label, f"{load['host_gb']:.0f} GB"]
        rows.append([*cells, *(short_cell(figure, runs) for figure in felt)])
    return table(heads, rows, left=1)


def long_table(data: dict[str, Any]) -> str:
    """A row per workload and figure: the values, which setting is best, and the other draws."""
    heads = ["workload", "figure", "defaults", "best of SGLang's settings", "which", "tokenflow"]
    heads += ["over the best", "over the defaults", "over the best that is smooth"]
    heads += ["over the best, other draws"]
    rows = []
    for name, load in _loads(data):
        runs = load["draws"]["0"]
        for figure in (*FIGURES, EFFECTIVE):
            best, smooth = figure.best(runs), figure.smooth(runs)
            values = [figure.show(figure.of(runs[each])) for each in (DEFAULTS, best, TOKENFLOW)]
            # Many settings with the same value: it says nothing which of them comes first.
            which = best if figure.of(runs[best]) != figure.of(runs[DEFAULTS]) else DEFAULTS
            rows.append(
                [
                    f"`{name}`",
                    figure.name,
                    *values[:2],
                    which,
                    values[2],
                    *(ratio_cell(figure, runs, over) for over in (best, DEFAULTS)),
                    ratio_cell(figure, runs, smooth) if smooth else "none is",
                    _spread(figure, load["draws"]),
                ]
            )
    return table(heads, rows, left=2)


def write_tables(data: dict[str, Any]) -> None:
    """Write the tables between their markers into the two pages."""
    tables = {"own-felt": felt_table, "own": short_table, "own-long": long_table}
    for page in (README, PAGE):
        text = page.read_text()
        for marker, make in tables.items():
            text = between(text, marker, make(data))
        page.write_text(text)


def _loads(data: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((name, data["workloads"][name]) for name in LABELS if name in data["workloads"])


def _spread(figure: Figure, draws: dict[str, dict[str, Run]]) -> str:
    """The least and the largest ratio to the best over the other draws."""
    others = [runs for number, runs in draws.items() if number != "0"]
    ratios = sorted(figure.ratio(runs, figure.best(runs)) for runs in others)
    shown = [times(ratio) for ratio in ratios]
    return " to ".join(dict.fromkeys([shown[0], shown[-1]])) if shown else "-"
