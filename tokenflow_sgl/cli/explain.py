"""``tokenflow explain``: what happened to streams, and why, from the log of decisions."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.cli.failing import Exit, fail
from tokenflow_sgl.lab.observe.stream_events import (
    Event,
    LogError,
    events,
    identifiers,
    named,
    read_log,
    short_names,
)

MOST_SHOWN = 40
AROUND_SECONDS = 60.0
"""How far from the time of `--at` an event may lie."""


def explain(
    log: Annotated[
        Path, typer.Argument(help="File that the server was given with --tokenflow-decision-log.")
    ],
    stream: Annotated[
        str | None,
        typer.Option(
            metavar="RID",
            help="Only events of this request: its id, or a beginning of it that no other id has.",
        ),
    ] = None,
    at: Annotated[
        str | None,
        typer.Option(
            metavar="[DATE]TIME",
            help="Only events within a minute of this time, like 12:03:04 or 2026-11-22T12:03:04; "
            "without a time zone, in this machine's.",
        ),
    ] = None,
    last: Annotated[
        int, typer.Option(min=1, help="Most events to show: the latest, or the nearest to --at.")
    ] = MOST_SHOWN,
) -> None:
    """Show which streams were admitted, paused, scheduled to run and restored, when, and why.

    Start the server with --tokenflow-decision-log FILE. Exits with 1 if there is no such event in
    the log. Example:

    tokenflow explain decisions.jsonl --stream 7f3a91 --at 12:03:04
    """
    console = Console()
    try:
        lines = list(read_log(log))
    except LogError as error:
        _fail(str(error), Exit.usage)
    names = short_names(identifiers(lines))
    found = list(events(lines, names))
    if not found:
        _fail(
            f"{log} has no events: no stream was admitted, paused, resumed or restored", Exit.failed
        )
    chosen = found
    if stream is not None:
        stream = _stream(stream, found)
        chosen = [event for event in found if event.rid == stream]
    if at is not None:
        chosen = _around(chosen, _moment(at, found), last, stream)
    if stream is not None:
        console.print(f"stream {stream}", markup=False, highlight=False, soft_wrap=True)
    _show(console, chosen[-last:], names)
    counts = Counter(event.what for event in found)
    console.print(
        f"{len(found):,} events in the log: "
        + ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
        + f"; {_span(found)}",
        highlight=False,
        soft_wrap=True,
    )


def _stream(asked: str, found: Sequence[Event]) -> str:
    """The stream that `asked` names."""
    rids = [event.rid for event in found]
    meant = named(asked, rids)
    if len(meant) == 1:
        return meant[0]
    if meant:
        more = f" or one of {len(meant) - 3} others" * (len(meant) > 3)
        _fail(f"--stream {asked} may be {' or '.join(meant[:3])}{more}", Exit.usage)
    examples = ", ".join(rid for rid, _ in Counter(rids).most_common(3))
    _fail(f"the log has nothing of a stream {asked}; it has {examples}", Exit.failed)


def _moment(at: str, found: Sequence[Event]) -> float:
    """The time of `--at` within the span of the log, in Unix seconds."""
    asked = _parsed(at)
    first, latest = found[0].time - AROUND_SECONDS, found[-1].time + AROUND_SECONDS
    if isinstance(asked, datetime.datetime):
        moments = [asked.timestamp()]
    else:
        days = range((_local(latest).date() - _local(first).date()).days + 1)
        dates = (_local(first).date() + datetime.timedelta(days=day) for day in days)
        moments = [datetime.datetime.combine(date, asked).timestamp() for date in dates]
    meant = [moment for moment in moments if first <= moment <= latest]
    if not meant:
        _fail(f"{at} is not in the log, which goes {_span(found)}", Exit.failed)
    if len(meant) > 1:
        dates_meant = " and ".join(str(_local(moment).date()) for moment in meant)
        example = _local(meant[-1]).isoformat(timespec="seconds")
        _fail(f"{at} is in the log on {dates_meant}; say which, like --at {example}", Exit.usage)
    return meant[0]


def _parsed(at: str) -> datetime.datetime | datetime.time:
    for kind in (datetime.time, datetime.datetime):
        try:
            return kind.fromisoformat(at)
        except ValueError:
            continue
    _fail(f"--at is {at!r}; allowed is a time like 12:03:04 or 2026-11-22T12:03:04", Exit.usage)


def _around(found: Sequence[Event], moment: float, most: int, stream: str | None) -> list[Event]:
    """The events nearest to a time and within a minute of it, in their order."""
    near = [event for event in found if abs(event.time - moment) <= AROUND_SECONDS]
    if near:
        nearest = sorted(near, key=lambda event: abs(event.time - moment))[:most]
        return sorted(nearest, key=lambda event: event.time)
    before = [event.time for event in found if event.time < moment]
    after = [event.time for event in found if event.time > moment]
    neighbours = [f"the event before is at {_clock(before[-1])}"] if before else []
    if after:
        neighbours.append(f"the {'next' if before else 'first'} at {_clock(after[0])}")
    _fail(
        f"nothing happened{f' to {stream}' if stream else ''} within {AROUND_SECONDS:.0f} s of "
        f"{_clock(moment)}; {', '.join(neighbours)}",
        Exit.failed,
    )


def _show(console: Console, found: Sequence[Event], names: Mapping[str, str]) -> None:
    table = Table("time", box=None, pad_edge=False)
    # Identifiers are short; on a narrow screen the sentences wrap first.
    table.add_column("stream", min_width=min(max(len(names[event.rid]) for event in found), 36))
    table.add_column("")
    table.add_column("why")
    for column in table.columns:
        column.overflow = "fold"
    styles = {"paused": "yellow", "scheduled": "green", "admitted": "cyan"}
    one_day = len({_local(event.time).date() for event in found}) == 1
    for event in found:
        moment = _local(event.time).strftime("%H:%M:%S.%f" if one_day else "%Y-%m-%d %H:%M:%S.%f")
        style, why = styles.get(event.what, ""), event.why + _state(event.line)
        table.add_row(moment[:-5], names[event.rid], Text(event.what, style=style), Text(why))
    console.print(table)


def _state(line: Mapping[str, Any]) -> str:
    """The server's state in a pass; a restoration has none."""
    if "streams" not in line:
        return ""
    memory = 1 - line["device_free"] / line["device_total"]
    counts = line["streams"]
    return (
        f" ({counts['running']} running, {counts['paused']} paused, "
        f"{counts['waiting']} waiting, memory {memory:.0%} taken)"
    )


def _local(moment: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(moment)


def _clock(moment: float) -> str:
    return _local(moment).isoformat(sep=" ", timespec="seconds")


def _span(found: Sequence[Event]) -> str:
    return f"from {_clock(found[0].time)} to {_clock(found[-1].time)}"


def _fail(text: str, kind: Exit) -> NoReturn:
    fail(f"{text}.", kind)
