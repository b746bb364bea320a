"""The newest decisions of a log, with their reasons, for the live page."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenflow_sgl.lab.observe.live.words import brief
from tokenflow_sgl.lab.observe.stream_events import (
    LogError,
    events,
    identifiers,
    read_tail,
    short_names,
)

TAIL_BYTES = 256 * 1024
"""Of a log that are read each time: some hundred lines."""
MOST_SHOWN = 30
MOST_LETTERS = 400
"""Of a reason; more only where a policy of one's own writes more."""


@dataclass(frozen=True, slots=True)
class Told:
    """One event of a stream.

    Attributes:
        moment: Time of day on this machine.
        stream: Short name of its request.
        what: What happened to it.
        why: In words.
    """

    moment: str
    stream: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """The end of one log.

    Attributes:
        name: Of the file.
        told: Newest first.
        failed: Why it cannot be read, or empty.
    """

    name: str
    told: Sequence[Told] = ()
    failed: str = ""


def newest(logs: Iterable[Path]) -> list[Decisions]:
    """The newest events of each log."""
    return [_of(log) for log in logs]


def _of(log: Path) -> Decisions:
    if not log.exists():
        return Decisions(log.name, failed=f"{log} is not there; a server makes it when it decides")
    try:
        lines = read_tail(log, TAIL_BYTES)
        names = short_names(identifiers(lines))
        found = [*events(lines, names)][-MOST_SHOWN:]
        told = [
            Told(_clock(each.time), brief(names[each.rid]), each.what, each.why[:MOST_LETTERS])
            for each in reversed(found)
        ]
    except LogError as error:
        return Decisions(log.name, failed=str(error))
    except (AttributeError, KeyError, OverflowError, OSError, TypeError, ValueError):
        return Decisions(log.name, failed=f"{log} has lines that are none of a log of decisions")
    return Decisions(log.name, told)


def _clock(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment).strftime("%H:%M:%S")
