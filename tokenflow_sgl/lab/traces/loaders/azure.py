"""Azure LLM inference traces of 2023 (Patel et al., "Splitwise", ISCA 2024) and 2024.

Files at github.com/Azure/AzurePublicDataset (CC-BY-4.0).
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tokenflow_sgl.lab.traces.loaders.intake import Intake, stem
from tokenflow_sgl.lab.traces.loaders.source import Progress, Table
from tokenflow_sgl.lab.traces.request import Trace

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:?\d\d)?", re.ASCII
)
_ALLOWED = "a time like 2023-11-16 18:15:46.6805900, with or without a zone"
_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)
_TICKS = 1_000_000_000


def load_azure(path: Path, *, sort: bool = False, progress: Progress | None = None) -> Trace:
    """Load an Azure LLM inference trace; every digit of its times counts.

    Args:
        path: CSV file, or .csv.gz.
        sort: Sort rows that are out of order instead of refusing them.
        progress: Told how far reading is.

    Raises:
        TraceError: The file cannot be read or is malformed.
    """
    table = Table(path, COLUMNS, progress, kind="azure")
    intake = Intake(table, "TIMESTAMP", sort=sort)
    first = ""
    zoned = False
    for time_text, prompt_text, output_text in table.rows():
        ticks, has_zone = _ticks(table, time_text)
        if not first:
            first, zoned = time_text, has_zone
        elif has_zone != zoned:
            table.fail("TIMESTAMP", time_text, "a zone in all rows or in none")
        prompt = table.count("ContextTokens", prompt_text)
        output = table.count("GeneratedTokens", output_text)
        intake.add(ticks, prompt, output)
    notes = [f"Azure LLM inference trace; its first row is of {first}."]
    return intake.trace(stem(table), notes, per_second=_TICKS)


def _ticks(table: Table, text: str) -> tuple[int, bool]:
    """Nanoseconds since 1970 of a time, and whether it has a zone; without one it is UTC.

    A double cannot hold them, so they stay whole numbers until the zero is subtracted.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        table.fail("TIMESTAMP", text, _ALLOWED)
    day, clock, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day} {clock}{zone or ''}")
        if zone:
            moment = moment.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):  # the latter: years 1 and 9999 that another zone leaves
        table.fail("TIMESTAMP", text, _ALLOWED)
    seconds = (moment - _EPOCH) // _SECOND
    return seconds * _TICKS + int((fraction or "0").ljust(9, "0")), bool(zone)
