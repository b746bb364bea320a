"""What ``tokenflow capacity`` shows and writes: a table, what it saves, and all rates as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from tokenflow_sgl.cli.wide_output import table_console

if TYPE_CHECKING:
    from tokenflow_sgl.lab.sim.study.capacity_search import CapacitySetup, Carried


LASTING = 3.0
"""Times that an average answer should be read while arrivals last; sooner no load is steady."""


def print_capacity(found: Sequence[Carried], title: str) -> None:
    """Print a row for each policy."""
    from tokenflow_sgl.lab.report.fitting import Fitting

    table = Table(title=title)
    for head in ("policy", "streams/s", "over the first", "meet the goal"):
        table.add_column(head, justify="left" if head == "policy" else "right")
    table.add_column("rates tried", justify="right")
    for each in found:
        ratio = f"{each.rate / found[0].rate:.2f}" if found[0].rate else "-"
        good = "-" if each.best is None else f"{each.best.share:.2%}"
        table.add_row(each.policy, _rate(each), ratio, good, str(len(each.tried)))
    table_console().print(Fitting(table))


def verdict(setup: CapacitySetup, found: Sequence[Carried]) -> Iterator[str]:
    """A sentence for each policy beside the first, and for each outcome that is in doubt."""
    if setup.shortest_s < LASTING * setup.read_s:
        yield (
            f"Arrivals take {setup.shortest_s:,.0f} s and reading an answer {setup.read_s:,.0f} s, "
            "so no load lasts and the rates found are too high: take a longer trace."
        )
    stock = found[0]
    for each in found[1:]:
        if not each.rate and not stock.rate:
            yield f"Neither {each.policy} nor {stock.policy} carries any."
            continue
        if not each.rate or not stock.rate:
            able, unable = (each, stock) if each.rate else (stock, each)
            yield f"{able.policy} carries {_rate(able)} streams/s, {unable.policy} none."
            continue
        needed = stock.rate / each.rate
        change = f"{1 - needed:.0%} fewer" if needed <= 1.0 else f"{needed - 1:.0%} more"
        yield (
            f"{each.policy} carries {_rate(each)} streams/s, {stock.policy} {_rate(stock)}: the "
            f"same experience on {change} GPUs."
        )
    for each in found:
        if each.unbounded and each.best is not None:
            yield f"{each.policy} meets the goal at the fastest rate that is tried."
        if not each.monotone and each.best is not None:
            yield (
                f"{each.policy} misses the goal at one rate and meets it at a higher one; given is "
                "the highest below the first miss."
            )


def object_of(setup: CapacitySetup, found: Sequence[Carried]) -> dict[str, Any]:
    """The study as plain values."""
    return {
        "trace": setup.traces[0].name,
        "draws": len(setup.traces),
        "streams": sum(len(trace.requests) for trace in setup.traces),
        "device": setup.profile.device,
        "model": setup.profile.model,
        "server_args": dataclasses.asdict(setup.options),
        "goal": dict(setup.goal.limits),
        "share": setup.share,
        "known_lengths": setup.known_lengths,
        "policies": [
            {
                "policy": each.policy,
                "streams_per_second": each.rate,
                "monotone": each.monotone,
                "unbounded": each.unbounded,
                "tried": [
                    {"streams_per_second": tried.rate, "share": tried.share, "whole": tried.whole}
                    for tried in each.tried
                ],
            }
            for each in found
        ],
    }


def _rate(each: Carried) -> str:
    return f"{each.rate:.3g}" if each.rate else "none"
