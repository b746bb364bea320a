"""The tables of `deployments.py`, and whether tokenflow reaches its goals: from the data alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compared import (
    DEFAULTS,
    FIGURES,
    TOKENFLOW,
    Run,
    between,
    ratio_cell,
    short_cell,
    table,
    times,
)

DATA = Path(__file__).resolve().parents[1] / "results" / "deployments.json"
PAGE = Path(__file__).with_name("README.md")
SHARE = 0.99
"""Of the readers who have to be served well, for a rate to be carried."""
LOADS = ("0.7", "0.9", "1.1", "1.5")
"""Times the rate that stock SGLang carries."""
HOSTS = {TOKENFLOW: 2.0, "tokenflow, host 1": 1.0, "tokenflow, host 0.5": 0.5}
"""Runs of tokenflow: KV tokens of the host pool by those of the device."""
SHOWN = (
    "first text, mean",
    "first text, P99",
    "readers that stall",
    "stalls, all readers",
    "served well",
    "whole answer, mean",
    "tokens/s",
)
COLUMNS = {figure.name: figure for figure in FIGURES if figure.name in SHOWN}
"""Figures of these tables, by name."""

Deployments = dict[str, dict[str, Any]]


def complete(data: dict[str, Any]) -> Deployments:
    """The deployments that have run, maybe not yet with less host memory."""
    return {
        name: found
        for name, found in data["deployments"].items()
        if TOKENFLOW in found["capacity"] and _ran(found, TOKENFLOW)
    }


def _ran(deployment: dict[str, Any], host: str) -> bool:
    return all(host in deployment["loads"].get(load, ()) for load in LOADS)


def seen(runs: dict[str, Run], ours: str = TOKENFLOW) -> dict[str, Run]:
    """SGLang's own settings and one of tokenflow's runs, as tokenflow."""
    own = {name: run for name, run in runs.items() if name not in HOSTS}
    return own | {TOKENFLOW: runs[ours]}


def short_table(found: Deployments) -> str:
    """A row per deployment and load, with HiCache's default of twice the device on the host."""
    heads = ["deployment", "load", *COLUMNS]
    rows = []
    for name, deployment in found.items():
        for load in LOADS:
            runs = seen(deployment["loads"][load])
            cells = (short_cell(figure, runs) for figure in COLUMNS.values())
            rows.append([f"`{name}`" if load == LOADS[0] else "", load, *cells])
    return table(heads, rows, left=2)


def machines_table(found: Deployments) -> str:
    """A row per deployment: its memory, and the rates that are carried, in requests/s."""
    heads = ["deployment", "model", "KV tokens", "KV", "defaults"]
    heads += ["best of SGLang's settings", "which", "tokenflow", "over the best"]
    rows = []
    for name, deployment in found.items():
        carried = deployment["capacity"]
        best = best_carried(deployment)
        ratio = capacity_ratio(deployment)
        shown = times(ratio)
        rows.append(
            [
                f"`{name}`",
                deployment["model"],
                f"{deployment['kv_tokens']:,}",
                f"{deployment['kv_gb']:.0f} GB",
                _rate(carried[DEFAULTS]),
                _rate(carried[best]),
                best,
                _rate(carried[TOKENFLOW]),
                f"**{shown}**" if ratio < LEAST_CAPACITY else shown,
            ]
        )
    return table(heads, rows, left=2)


def _rate(found: dict[str, Any]) -> str:
    doubt = "" if found["monotone"] else " (*)"
    return f"{found['requests_per_s']:.3g}{doubt}"


def traffic_table(found: Deployments) -> str:
    """A row per kind of traffic."""
    kinds = {each["traffic"]: each["served"] for each in found.values()}
    return table(["traffic", "is"], [[f"`{name}`", title] for name, title in kinds.items()], left=2)


def hosts_table(found: Deployments) -> str:
    """A row per deployment and load: tokenflow over the best, by the size of the host pool."""
    names = ("first text, mean", "readers that stall", "whole answer, mean")
    heads = ["deployment", "load"]
    heads += [f"{name}, host {size:g}" for name in names for size in HOSTS.values()]
    rows = []
    for name, deployment in found.items():
        if not all(_ran(deployment, host) for host in HOSTS):
            continue
        for load in LOADS:
            cells = []
            for figure in (COLUMNS[each] for each in names):
                for host in HOSTS:
                    runs = seen(deployment["loads"][load], host)
                    best = figure.best(runs)
                    value = figure.show(figure.of(runs[TOKENFLOW]))
                    bold = f"**{value}**" if figure.worse(runs, best) else value
                    cells.append(ratio_cell(figure, runs, best) if figure.ratios else bold)
            rows.append([f"`{name}`" if load == LOADS[0] else "", load, *cells])
    return table(heads, rows, left=2)


def long_table(found: Deployments) -> str:
    """A row per deployment, load and figure: the values, and which setting is best."""
    heads = ["deployment", "load", "figure", "defaults", "best of SGLang's settings", "which"]
    heads += ["tokenflow", "over the best", "over the defaults"]
    rows = []
    for name, deployment in found.items():
        for load in LOADS:
            runs = seen(deployment["loads"][load])
            for figure in COLUMNS.values():
                best = figure.best(runs)
                values = [figure.show(figure.of(runs[each])) for each in (DEFAULTS, best)]
                same = figure.of(runs[best]) == figure.of(runs[DEFAULTS])
                rows.append(
                    [
                        f"`{name}`",
                        load,
                        figure.name,
                        *values,
                        DEFAULTS if same else best,
                        figure.show(figure.of(runs[TOKENFLOW])),
                        *(ratio_cell(figure, runs, over) for over in (best, DEFAULTS)),
                    ]
                )
    return table(heads, rows, left=3)


@dataclass(frozen=True, slots=True)
class Limit:
    """What tokenflow should keep in a run.

    Attributes:
        name: In words.
        loads: Where.
        of: By how much it is missed, from a value to the limit: SGLang's own runs and tokenflow's.
        most: The value at most.
    """

    name: str
    loads: tuple[str, ...]
    of: Callable[[dict[str, Run]], float]
    most: float


def _over_best(name: str) -> Callable[[dict[str, Run]], float]:
    figure = COLUMNS[name]
    return lambda runs: figure.ratio(runs, figure.best(runs))


def _stalled(runs: dict[str, Run]) -> float:
    return runs[TOKENFLOW]["stalled_share"]


def _stalled_over_stock(runs: dict[str, Run]) -> float:
    return runs[TOKENFLOW]["stalled_share"] - runs[DEFAULTS]["stalled_share"]


def _columns_worse(runs: dict[str, Run]) -> float:
    return sum(figure.worse(runs, figure.best(runs)) for figure in COLUMNS.values())


LIMITS = (
    Limit("at most 1 % of the readers stall", LOADS, _stalled, 0.01),
    Limit("no more readers stall than with stock", LOADS, _stalled_over_stock, 0.0),
    Limit("mean TTFT at most 0.6 times the best", LOADS[2:], _over_best("first text, mean"), 0.6),
    Limit("P99 TTFT at most 0.9 times the best", LOADS[2:], _over_best("first text, P99"), 0.9),
    Limit("end to end at most 1.03 times the best", LOADS, _over_best("whole answer, mean"), 1.03),
    Limit("columns worse than the best by over 2 %", LOADS[:1], _columns_worse, 0.0),
)
"""The goals in each run; figures that are shown as 0 on both sides are alike."""
MEDIAN_CAPACITY, LEAST_CAPACITY = 1.3, 1.0
"""Of the rate carried over the best of SGLang's own: in the median deployment, and in each."""


def capacity_ratio(deployment: dict[str, Any]) -> float:
    """The rate that tokenflow carries over that of the best of SGLang's own settings."""
    carried = deployment["capacity"]
    best = carried[best_carried(deployment)]["requests_per_s"]
    return float(carried[TOKENFLOW]["requests_per_s"] / best)


def best_carried(deployment: dict[str, Any]) -> str:
    """Which of SGLang's own settings carries the highest rate; the first one among equals."""
    carried = deployment["capacity"]
    own: list[str] = [name for name in carried if name != TOKENFLOW]
    return max(own, key=lambda name: float(carried[name]["requests_per_s"]))


def verdict_table(found: Deployments) -> str:
    """A row per goal: in how many runs it is reached, by the size of the host pool."""
    hosts = [f"host {size:g}" for size in HOSTS.values()]
    heads = ["goal", "at loads", *hosts, "farthest from it, host 2"]
    rows = []
    for limit in LIMITS:
        values = {
            host: {
                (name, load): limit.of(seen(deployment["loads"][load], host))
                for name, deployment in found.items()
                if _ran(deployment, host)
                for load in limit.loads
            }
            for host in HOSTS
        }
        reached = [
            f"{sum(value <= limit.most for value in each.values())} of {len(each)}" if each else "-"
            for each in values.values()
        ]
        (name, load), farthest = max(values[TOKENFLOW].items(), key=lambda item: item[1])
        worst = f"`{name}` at {load}: {farthest:.3g}"
        rows.append([limit.name, ", ".join(limit.loads), *reached, worst])
    ratios = {name: capacity_ratio(deployment) for name, deployment in found.items()}
    least = min(ratios, key=lambda name: ratios[name])
    median = statistics.median(ratios.values())
    enough = "reached" if median >= MEDIAN_CAPACITY else "missed"
    rows += [
        [
            f"capacity at least {MEDIAN_CAPACITY:g} times the best in the median deployment",
            "",
            f"{enough}: {median:.2f}",
            *["-"] * (len(HOSTS) - 1),
            "",
        ],
        [
            "capacity never below the best",
            "",
            f"{sum(each >= LEAST_CAPACITY for each in ratios.values())} of {len(ratios)}",
            *["-"] * (len(HOSTS) - 1),
            f"`{least}`: {ratios[least]:.2f}",
        ],
    ]
    return table(heads, rows, left=2)


def verdicts(data: dict[str, Any]) -> Iterator[str]:
    """The short tables of what has run, for the terminal."""
    found = complete(data)
    if not found:
        yield "No deployment is complete."
        return
    yield short_table(found)
    yield verdict_table(found)


def write_tables() -> dict[str, Any]:
    """Write the tables between their markers into the page; gives back the data."""
    data: dict[str, Any] = json.loads(DATA.read_text())
    found = complete(data)
    if found:
        text = PAGE.read_text()
        for marker, make in TABLES.items():
            text = between(text, marker, make(found))
        PAGE.write_text(text)
    return data


TABLES: dict[str, Callable[[Deployments], str]] = {
    "verdict": verdict_table,
    "traffic": traffic_table,
    "machines": machines_table,
    "short": short_table,
    "hosts": hosts_table,
    "long": long_table,
}
"""By their markers."""
