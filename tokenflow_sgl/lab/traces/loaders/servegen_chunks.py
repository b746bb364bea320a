"""ServeGen as published: a folder with two files for each client.

`data/{language,reason,multimodal}/MODEL/chunk-N-*` of github.com/alibaba/ServeGen; N is the client.
`chunk-N-trace.csv` has no header and a row per 10 minutes: start in seconds, requests per second,
their variation, Gamma or Weibull or nothing, shape, scale. `chunk-N-dataset.json` has an object per
6 hours, by its start: each field is a text that spells a Python dictionary of probabilities.
Multimodal clients have `text_tokens`, and of images, sounds and videos how many a prompt has and
how long each is.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.lab.traces.loaders.servegen import (
    FAMILIES,
    LENGTH_WINDOW_S,
    ArrivalWindow,
    ClientLengths,
    FittedValues,
    check_span,
    distribution_of,
    sampled,
)
from tokenflow_sgl.lab.traces.loaders.source import CSV_LINE, Progress, Source
from tokenflow_sgl.lab.traces.request import Trace, TraceError

MOST_CLIENTS = 100_000
LARGEST_LENGTHS = 256 * 1024 * 1024
"""Bytes of one client's file of lengths."""
_TRACE = re.compile(r"chunk-(\d{1,9})-trace\.csv")
_COLUMNS = ("window start", "rate", "CV", "family", "shape", "scale")
_NUMBER = re.compile(r"\d{1,15}(\.\d{1,30})?([eE][-+]?\d{1,3})?")
_LENGTHS = ("input_tokens", "output_tokens")
_REASONING = "reason_ratio"
_TEXT = "text_tokens"
_MEDIA = ("image", "audio", "video")


def load_servegen_chunks(
    folder: Path,
    *,
    start_s: float,
    duration_s: float,
    seed: int = 0,
    progress: Progress | None = None,
) -> Trace:
    """Sample requests of all clients of a folder; see `load_servegen`.

    Where a client has no lengths in a window, those of its latest window before it are taken.

    Raises:
        TraceError: There are no clients, a file of one is missing or malformed, or nothing or too
            much lies in the duration.
    """
    check_span(start_s, duration_s)
    clients = _clients(folder)
    windows: list[ArrivalWindow] = []
    lengths: dict[tuple[int, float], ClientLengths] = {}
    for number, (client, path) in enumerate(sorted(clients.items())):
        if progress is not None:
            progress(number, len(clients))
        own = _windows(path, client)
        windows += own
        known = _lengths(path.with_name(f"chunk-{client}-dataset.json"))
        lengths |= _filled(client, own, known)
    source = Source(folder, CSV_LINE, kind="servegen")
    if not windows:
        source.error("has no window with requests")
    return sampled(source, windows, lengths, (start_s, duration_s), seed)


def _clients(folder: Path) -> dict[int, Path]:
    found: dict[int, Path] = {}
    for path in folder.iterdir():
        if match := _TRACE.fullmatch(path.name):
            found[int(match[1])] = path
    if not found:
        raise TraceError(
            f"{folder}: has no chunk-N-trace.csv; allowed is a folder of ServeGen's data, with "
            "chunk-N-trace.csv and chunk-N-dataset.json of each client"
        )
    if len(found) > MOST_CLIENTS:
        raise TraceError(f"{folder}: has {len(found)} clients; allowed are {MOST_CLIENTS}")
    return found


def _windows(path: Path, client: int) -> list[ArrivalWindow]:
    source = Source(path, CSV_LINE, kind="servegen")
    found: list[ArrivalWindow] = []
    seen: set[float] = set()
    for row in csv.reader(source.lines()):
        if not row:
            continue
        if len(row) != len(_COLUMNS):
            source.error(f"has {len(row)} values; allowed are {len(_COLUMNS)}: {_COLUMNS_SAID}")
        start, rate = _number(source, row, 0), _number(source, row, 1)
        if start in seen:
            source.error("this window is there twice", _COLUMNS[0])
        seen.add(start)
        family = row[3].strip()
        if not family and not rate:
            continue  # the client sent nothing
        if family not in FAMILIES:
            source.fail("family", family, " or ".join(FAMILIES))
        shape = _number(source, row, 4)
        if not shape:
            source.fail("shape", row[4], "a number above 0")
        found.append(ArrivalWindow(client, start, rate, family, shape, source.line))
    if not source.line:
        source.error("is empty")
    return found


_COLUMNS_SAID = ", ".join(_COLUMNS)


def _number(source: Source, row: list[str], place: int) -> float:
    text = row[place].strip()
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(value):
        source.fail(_COLUMNS[place], text, "a number of at least 0")
    return value


def _lengths(path: Path) -> Mapping[float, ClientLengths]:
    """Lengths by the start of their window; windows without data are left out."""
    source = Source(path, LARGEST_LENGTHS, kind="servegen")
    try:
        if path.stat().st_size > LARGEST_LENGTHS:
            source.error(f"is larger than {LARGEST_LENGTHS} bytes, the most that is read")
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        source.error(f"cannot be read: {error.strerror}")
    except (ValueError, RecursionError):
        source.error("is not JSON that can be used")
    if not isinstance(value, dict):
        source.error("is no object of windows")
    found: dict[float, ClientLengths] = {}
    for start, fields in value.items():
        if not start.isascii() or not start.isdigit() or len(start) > 12:
            source.error("has a window that does not start at a whole number of seconds")
        if not isinstance(fields, dict):
            source.error(f"window {start} is no object of distributions")
        names = (_TEXT, _LENGTHS[1]) if _TEXT in fields else _LENGTHS
        prompts, outputs = (_spelt(source, fields, name, start, _tokens) for name in names)
        if prompts is None or outputs is None:
            continue
        reasoning = None
        if _REASONING in fields:
            reasoning = _spelt(source, fields, _REASONING, start, _share)
        media = _media(source, fields, start) if _TEXT in fields else ()
        found[float(start)] = ClientLengths(prompts, outputs, reasoning, media)
    return found


def _media(
    source: Source, fields: dict[str, Any], start: str
) -> tuple[tuple[FittedValues, FittedValues], ...]:
    """How many images, sounds and videos a prompt has, and how long each is."""
    found = []
    for kind in _MEDIA:
        counts = _spelt(source, fields, f"{kind}_count", start, _tokens)
        tokens = _spelt(source, fields, f"{kind}_tokens", start, _tokens)
        if counts is not None and tokens is not None:
            found.append((counts, tokens))
    return tuple(found)


def _filled(
    client: int, windows: list[ArrivalWindow], known: Mapping[float, ClientLengths]
) -> dict[tuple[int, float], ClientLengths]:
    """For each window of arrivals the lengths of its time, or of the latest time before."""
    starts = sorted(known)
    found = {}
    for window in windows:
        place = window.start_s // LENGTH_WINDOW_S * LENGTH_WINDOW_S
        before = [start for start in starts if start <= place]
        if before:
            found[client, place] = known[before[-1]]
    return found


def _spelt(
    source: Source,
    fields: dict[str, Any],
    name: str,
    start: str,
    read: Callable[[str], float | None],
) -> FittedValues | None:
    """A distribution that a text spells as a Python dictionary; None: it is empty.

    Read by its commas and colons: nothing of the file is evaluated.
    """
    column = f"{name} of window {start}"
    text = fields.get(name)
    if not isinstance(text, str):
        source.error("is missing or no text", column)
    inside = text.strip()
    if not (inside.startswith("{") and inside.endswith("}")):
        source.fail(column, text, "a dictionary of probabilities")
    values, shares = [], []
    for part in filter(None, (each.strip() for each in inside[1:-1].split(","))):
        key, colon, share = (each.strip() for each in part.partition(":"))
        value = read(key) if _NUMBER.fullmatch(key) else None
        probability = float(share) if colon and _NUMBER.fullmatch(share) else math.nan
        if value is None or not 0.0 <= probability <= 1.0:
            source.fail(column, part, "values with their probabilities from 0 to 1")
        values.append(value)
        shares.append(probability)
    return distribution_of(source, column, values, shares) if values else None


def _tokens(text: str) -> float | None:
    value = float(text)
    return value if value.is_integer() and value <= MAX_TOKENS else None


def _share(text: str) -> float | None:
    value = float(text)
    return value if value <= 1.0 else None
