"""The tables of `own_memory.py`: from its data to README.md and docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "benchmarks" / "results" / "own_memory.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "benchmarks.md"
DEFAULTS = "defaults"
TOKENFLOW = "tokenflow"
WORSE = 1.02
"""How many times the best is called worse."""

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

Run = dict[str, float]


def seconds(value: float) -> str:
    """So many seconds, with three digits."""
    if value >= 100:
        return f"{value:,.0f} s"
    return f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def whole_seconds(value: float) -> str:
    """So many seconds, without a fraction."""
    return f"{value:,.0f} s"


def milliseconds(value: float) -> str:
    """So many seconds, in milliseconds."""
    return f"{1e3 * value:,.0f} ms"


def share(value: float) -> str:
    """A share in percent."""
    return f"{value:.0%}"


def rate(value: float) -> str:
    """So many tokens per second."""
    return f"{value:,.0f}"


def waiting(run: Run) -> float:
    """Seconds that a reader waits for text on average, for the first and for later ones."""
    return run["ttft_mean"] + run["stall_seconds"] / run["requests"]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of the tables.

    Attributes:
        name: Its heading.
        of: Its value in a run.
        show: How a value is written.
        more_is_better: Which way it improves.
        ratios: The short table has ratios, not values.
    """

    name: str
    of: Callable[[Run], float]
    show: Callable[[float], str]
    more_is_better: bool = False
    ratios: bool = True

    def best(self, runs: dict[str, Run]) -> str:
        """Which of SGLang's own settings has the best value; the first one among equals."""
        own = [name for name in runs if name != TOKENFLOW]
        sign = -1.0 if self.more_is_better else 1.0
        return min(own, key=lambda name: sign * self.of(runs[name]))

    def ratio(self, runs: dict[str, Run], over: str) -> float:
        """The value over that of a setting: infinite over 0, and 1 where both are shown as 0."""
        ours, theirs = self.of(runs[TOKENFLOW]), self.of(runs[over])
        if ours == theirs or (self.show(ours) == self.show(theirs) == self.show(0.0)):
            return 1.0
        return ours / theirs if theirs else float("inf")

    def worse(self, runs: dict[str, Run], over: str) -> bool:
        """Whether tokenflow is worse than a setting, by more than is rounded away."""
        ratio = self.ratio(runs, over)
        shown = {self.show(self.of(runs[name])) for name in (TOKENFLOW, over)}
        beyond = ratio < 1 / WORSE if self.more_is_better else ratio > WORSE
        return beyond and len(shown) > 1


FIGURES = (
    Figure("first text, mean", itemgetter("ttft_mean"), seconds),
    Figure("first text, P99", itemgetter("ttft_p99"), seconds),
    Figure("readers that stall", itemgetter("stalled_share"), share, ratios=False),
    Figure("stalls, all readers", itemgetter("stall_seconds"), whole_seconds, ratios=False),
    Figure("first text and stalls, mean", waiting, seconds),
    Figure("served well", itemgetter("served_well"), share, more_is_better=True, ratios=False),
    Figure("whole answer, mean", itemgetter("e2e_mean"), seconds),
    Figure("gap between tokens, P99", itemgetter("tbt_p99"), milliseconds, ratios=False),
    Figure("tokens/s", itemgetter("tokens_per_s"), rate, more_is_better=True),
)
"""What a reader feels, and at last what the device makes."""
EFFECTIVE = Figure(
    "effective tokens/s", itemgetter("effective_tokens_per_s"), rate, more_is_better=True
)


def short_table(data: dict[str, Any]) -> str:
    """A row per workload: tokenflow against the best of SGLang's settings, and its defaults."""
    heads = ["workload", "KV tokens", "host memory", *(figure.name for figure in FIGURES)]
    rows = []
    for name, load in _loads(data):
        runs = load["draws"]["0"]
        cells = [f"`{name}`: {LABELS[name]}", f"{load['kv_tokens']:,}", f"{load['host_gb']:.0f} GB"]
        rows.append([*cells, *(_short(figure, runs) for figure in FIGURES)])
    return _table(heads, rows, left=1)


FELT = (
    "first text, mean",
    "first text, P99",
    "readers that stall",
    "served well",
    "whole answer, mean",
)
"""The README's figures."""


def felt_table(data: dict[str, Any]) -> str:
    """The README's: the same, of what a reader feels most."""
    felt = [figure for figure in FIGURES if figure.name in FELT]
    heads = ["workload", "KV tokens, host memory", *(figure.name for figure in felt)]
    rows = []
    for name, load in _loads(data):
        memory = f"{load['kv_tokens'] / 1000:,.0f}k, {load['host_gb']:.0f} GB"
        runs = load["draws"]["0"]
        cells = [f"`{name}`: {LABELS[name]}", memory]
        rows.append([*cells, *(_short(figure, runs) for figure in felt)])
    return _table(heads, rows, left=1)


def long_table(data: dict[str, Any]) -> str:
    """A row per workload and figure: the values, which setting is best, and the other draws."""
    heads = ["workload", "figure", "defaults", "best of SGLang's settings", "which", "tokenflow"]
    heads += ["over the best", "over the defaults", "over the best, other draws"]
    rows = []
    for name, load in _loads(data):
        runs = load["draws"]["0"]
        for figure in (*FIGURES, EFFECTIVE):
            best = figure.best(runs)
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
                    *(_ratio(figure, runs, over) for over in (best, DEFAULTS)),
                    _spread(figure, load["draws"]),
                ]
            )
    return _table(heads, rows, left=2)


def write_tables(data: dict[str, Any]) -> None:
    """Write the tables between their markers into the two pages."""
    tables = {"own-felt": felt_table, "own": short_table, "own-long": long_table}
    for page in (README, PAGE):
        text = page.read_text()
        for marker, make in tables.items():
            text = between(text, marker, make(data))
        page.write_text(text)


def between(page: str, marker: str, text: str) -> str:
    """The page with `text` between the markers of that name; as it was, if it has none."""
    begin, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->\n"
    if begin not in page:
        return page
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{text}\n{end}{tail}"


def _loads(data: dict[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    return ((name, data["workloads"][name]) for name in LABELS if name in data["workloads"])


def _short(figure: Figure, runs: dict[str, Run]) -> str:
    best = figure.best(runs)
    if figure.ratios:
        return f"{_ratio(figure, runs, best)} ({_ratio(figure, runs, DEFAULTS)})"
    values = [figure.show(figure.of(runs[name])) for name in (best, DEFAULTS, TOKENFLOW)]
    ours = f"**{values[2]}**" if figure.worse(runs, best) else values[2]
    return f"{values[0]} ({values[1]}) → {ours}"


def _ratio(figure: Figure, runs: dict[str, Run], over: str) -> str:
    shown = _times(figure.ratio(runs, over))
    return f"**{shown}**" if figure.worse(runs, over) else shown


def _times(ratio: float) -> str:
    if ratio == float("inf"):
        return "from 0"
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2f}x"


def _spread(figure: Figure, draws: dict[str, dict[str, Run]]) -> str:
    """The least and the largest ratio to the best over the other draws."""
    others = [runs for number, runs in draws.items() if number != "0"]
    ratios = sorted(figure.ratio(runs, figure.best(runs)) for runs in others)
    shown = [_times(ratio) for ratio in ratios]
    return " to ".join(dict.fromkeys([shown[0], shown[-1]])) if shown else "-"


def _table(heads: list[str], rows: list[list[str]], left: int) -> str:
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|" + " --- |" * left + " ---: |" * (len(heads) - left))
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
