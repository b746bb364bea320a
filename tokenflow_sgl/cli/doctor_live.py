"""``tokenflow doctor --live URL``: what a running server has measured of itself."""

from __future__ import annotations

import math
from typing import NoReturn

import typer
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.cli.failing import Exit, failing
from tokenflow_sgl.lab.observe import Scrape, scheduler_page

DIRECTIONS = {
    "store": ("to the host", "sglang:hicache_backup"),
    "load": ("back", "sglang:load_back"),
}
"""Name of each direction, and of SGLang's metrics of its copies."""


def examine(url: str, console: Console) -> None:
    """Print the state of a running server's scheduler; exit with 1 if it cannot be read."""
    with failing():
        seen = scheduler_page(url)
    console.print(_streams(seen))
    console.print(_links(seen))
    console.print(_switches(seen))
    console.print(_scheduling(seen))
    errors = seen.total("policy_errors_total")
    if errors > 0:
        _fail(
            console,
            f"The policy failed in {errors:,.0f} passes, which SGLang's own policy ran. Next: the "
            "first failure is in the server's log",
        )


def _fail(console: Console, text: str) -> NoReturn:
    console.print(f"{text}.", style="bold red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(Exit.failed)


def _table(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, show_header=any(heads))
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right")
    return table


def _streams(seen: Scrape) -> Table:
    modes = [mode for mode, on in seen.by("mode", "mode").items() if on > 0]
    table = _table("streams", "running", "paused", "waiting", "working set", "scheduler mode")
    levels = (
        _count(seen.total(f"{name}_streams"))
        for name in ("running", "paused", "waiting", "working_set")
    )
    table.add_row("", *levels, ", ".join(modes))
    return table


def _links(seen: Scrape) -> Table:
    """Both directions of the link between device and host memory."""
    table = _table(*("link", "rate", "", "not landed", "copies", "median", "P99", "copied"))
    for direction, (name, copies) in DIRECTIONS.items():
        rate = seen.total("link_tokens_per_second", direction=direction)
        tokens, size = (seen.total(f"{copies}_{what}_total") for what in ("tokens", "bytes"))
        table.add_row(
            name,
            _known(rate, "{:,.0f} tokens/s"),
            _known(rate * size / tokens / 1e9 if tokens else math.nan, "{:.1f} GB/s"),
            _known(seen.total("link_queue_tokens", direction=direction), "{:,.0f} tokens"),
            _count(seen.total(f"{copies}_duration_seconds_count")),
            _milliseconds(seen.quantile(f"{copies}_duration_seconds", 0.5)),
            _milliseconds(seen.quantile(f"{copies}_duration_seconds", 0.99)),
            _known(size / 1e9, "{:,.2f} GB"),
        )
    return table


def _switches(seen: Scrape) -> Table:
    """Costs of preempting and resuming, by the measured rates of the link."""
    tail = seen.quantile("preemption_tail_tokens", 0.5)
    resumes = seen.total("resumes_total")
    loaded = seen.total("resume_loaded_tokens_total") / resumes if resumes else math.nan
    needed = seen.total("written_ahead_needed_tokens_total")
    written = seen.total("written_ahead_tokens_total")
    table = _table("context switches", "")
    causes = ", ".join(
        f"{count:,.0f} {cause}"
        for cause, count in seen.by("preemptions_total", "cause").items()
        if count
    )
    table.add_row("preemptions", causes or "none")
    table.add_row(
        "left to copy by a preemption, median (tau_evict)",
        _known(tail, "{:,.0f} tokens") + _took(tail, seen, "store"),
    )
    table.add_row(
        "loaded with a resume, mean (tau_load)",
        _known(loaded, "{:,.0f} tokens") + _took(loaded, seen, "load"),
    )
    table.add_row(
        "recomputed by a resume, median",
        _known(seen.quantile("resume_recomputed_tokens", 0.5), "{:,.0f} tokens"),
    )
    held = seen.total("preempted_tokens_total")
    stored = seen.total("sglang:hicache_backup_tokens_total")
    table.add_row(
        "copied to the host over held by preempted streams",
        _known(stored / held if held else math.nan, "{:.2f}"),
    )
    table.add_row(
        "proactively written over needed",
        _known(written / needed if needed else math.nan, "{:.2f}"),
    )
    return table


def _scheduling(seen: Scrape) -> Table:
    table = _table("scheduling", "")
    table.add_row(
        "a policy pass, median and P99",
        f"{_milliseconds(seen.quantile('policy_pass_seconds', 0.5))}, "
        f"{_milliseconds(seen.quantile('policy_pass_seconds', 0.99))}",
    )
    table.add_row(
        "time in the scheduler loop, in all",
        _known(seen.total("scheduling_seconds_total"), "{:,.2f} s"),
    )
    return table


def _took(tokens: float, seen: Scrape, direction: str) -> str:
    """How long so many tokens take on a link, at its measured rate; each rank has its own link."""
    rate = seen.mean("link_tokens_per_second", direction=direction)
    seconds = tokens / rate if rate > 0 else math.nan
    return "" if math.isnan(seconds) else f", {_milliseconds(seconds)}"


def _known(value: float, shown: str) -> str:
    return "not known yet" if math.isnan(value) else shown.format(value)


def _count(value: float) -> str:
    return "0" if math.isnan(value) else f"{value:,.0f}"


def _milliseconds(seconds: float) -> str:
    return _known(1e3 * seconds, "{:.2f} ms")
