"""``tokenflow explain``: why a stream was paused, from the log of decisions."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.watch.decisions import Event, LogError, events, read_log

MOST_SHOWN = 40


def explain(
    log: Annotated[
        Path, typer.Argument(help="File that the server was given with --tokenflow-decision-log.")
    ],
    stream: Annotated[
        str | None, typer.Option(metavar="RID", help="Only what happened to this request.")
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(metavar="HH:MM:SS", help="Around this time of the server's clock."),
    ] = None,
    last: Annotated[int, typer.Option(min=1, help="So many of the latest events.")] = MOST_SHOWN,
) -> None:
    """Tell who was admitted, paused and taken up again, when, and for which reason.

    Start the server with --tokenflow-decision-log FILE. Examples:

    tokenflow explain decisions.jsonl --stream 7f3a91 --at 12:03:04
    """
    console = Console()
    try:
        found = list(events(read_log(log)))
    except LogError as error:
        _fail(str(error))
    chosen = [event for event in found if stream is None or event.rid == stream]
    if stream is not None and not chosen:
        known = Counter(event.rid for event in found).most_common(3)
        examples = ", ".join(rid for rid, _ in known) or "nobody at all"
        _fail(f"nothing is written down of {stream}; there is of {examples}")
    if at is not None:
        chosen = _around(chosen, at, last)
    _show(console, chosen[-last:])
    counts = Counter(event.what for event in found)
    console.print(
        f"{sum(counts.values()):,} events in the log: "
        + ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    )


def _around(found: list[Event], at: str, most: int) -> list[Event]:
    """The events nearest to a time of day, in their order."""
    try:
        wanted = datetime.time.fromisoformat(at)
    except ValueError:
        _fail(f"--at is {at!r}; allowed is a time of day like 12:03:04")
    seconds = wanted.hour * 3600 + wanted.minute * 60 + wanted.second

    def distance(event: Event) -> float:
        moment = datetime.datetime.fromtimestamp(event.time)
        return abs(moment.hour * 3600 + moment.minute * 60 + moment.second - seconds)

    nearest = sorted(found, key=distance)[:most]
    return sorted(nearest, key=lambda event: event.time)


def _show(console: Console, found: list[Event]) -> None:
    table = Table("time", "stream", "", "why", box=None, pad_edge=False)
    styles = {"paused": "yellow", "taken up": "green", "admitted": "cyan"}
    for event in found:
        moment = datetime.datetime.fromtimestamp(event.time).strftime("%H:%M:%S.%f")[:-5]
        memory = 1 - event.line["device_free"] / event.line["device_total"]
        counts = event.line["streams"]
        why = (
            f"{event.why} ({counts['running']} running, {counts['paused']} paused, "
            f"{counts['waiting']} waiting, memory {memory:.0%} taken)"
        )
        style = styles.get(event.what, "")
        table.add_row(moment, Text(event.rid), Text(event.what, style=style), Text(why))
    console.print(table)


def _fail(text: str) -> NoReturn:
    typer.echo(f"{text}.", err=True)
    raise typer.Exit(1)
