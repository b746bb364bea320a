"""Moments as files spell them, in whole nanoseconds since 1970."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from tokenflow_sgl.lab.traces.loaders.source import Source

INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
"""How a moment is written: date, time, fraction of a second, zone; the last two may lack."""
TICKS = 1_000_000_000
"""Of a second."""
_ALLOWED = "a time like 2023-11-16 18:15:46.6805900, with or without a zone"
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)


def ticks(source: Source, column: str, text: str) -> tuple[int, bool]:
    """Nanoseconds since 1970 of a moment, and whether it has a zone; without one it is UTC.

    A double cannot hold them, so they stay whole numbers until the zero is subtracted.

    Raises:
        TraceError: It is no moment.
    """
    match = INSTANT.fullmatch(text)
    if match is None:
        source.fail(column, text, _ALLOWED)
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day} {clock}{zone or ''}")
        if zone:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # the latter: years 1 and 9999 that another zone leaves
        source.fail(column, text, _ALLOWED)
    seconds = (moment - _EPOCH) // _SECOND
    return seconds * TICKS + int((fraction or "0").ljust(9, "0")), bool(zone)
