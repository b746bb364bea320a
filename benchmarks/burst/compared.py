"""Figures of runs under one flag beside SGLang's own settings: which is best, and what is worse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import itemgetter

from tokenflow_sgl.lab.sim.study.own_settings import DEFAULTS, TOKENFLOW

SMOOTH = 0.01
"""Share of readers that stall up to which a run counts as smooth."""
WORSE = 1.02
"""How many times the best is called worse."""

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
        return self._best(runs, [name for name in runs if name != TOKENFLOW])

    def smooth(self, runs: dict[str, Run]) -> str | None:
        """The same of those under which hardly any reader stalls; None: there are none."""
        smooth = [name for name, run in runs.items() if run["stalled_share"] <= SMOOTH]
        smooth = [name for name in smooth if name != TOKENFLOW]
        return self._best(runs, smooth) if smooth else None

    def _best(self, runs: dict[str, Run], among: list[str]) -> str:
        sign = -1.0 if self.more_is_better else 1.0
        return min(among, key=lambda name: sign * self.of(runs[name]))

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


def short_cell(figure: Figure, runs: dict[str, Run]) -> str:
    """Tokenflow against the best and, in brackets, the defaults; bold where it is worse."""
    best = figure.best(runs)
    if figure.ratios:
        return f"{ratio_cell(figure, runs, best)} ({ratio_cell(figure, runs, DEFAULTS)})"
    values = [figure.show(figure.of(runs[name])) for name in (best, DEFAULTS, TOKENFLOW)]
    ours = f"**{values[2]}**" if figure.worse(runs, best) else values[2]
    return f"{values[0]} ({values[1]}) → {ours}"


def ratio_cell(figure: Figure, runs: dict[str, Run], over: str) -> str:
    """How many times a setting's value; bold where it is worse."""
    shown = times(figure.ratio(runs, over))
    return f"**{shown}**" if figure.worse(runs, over) else shown


def times(ratio: float) -> str:
    """A ratio, three digits."""
    if ratio == float("inf"):
        return "from 0"
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2f}x"


def between(page: str, marker: str, text: str) -> str:
    """The page with `text` between the markers of that name; as it was, if it has none."""
    begin, end = f"<!-- {marker} -->\n", f"<!-- /{marker} -->\n"
    if begin not in page:
        return page
    head, _, rest = page.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n{text}\n{end}{tail}"


def table(heads: list[str], rows: list[list[str]], left: int) -> str:
    """A Markdown table, the first columns flush left."""
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|" + " --- |" * left + " ---: |" * (len(heads) - left))
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
