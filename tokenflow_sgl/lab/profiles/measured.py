"""Measurements of steps and copies, read from a CSV file.

One row per measurement, columns in any order, all of them and no other:

| kind | batch | tokens | context | seconds |
| --- | --- | --- | --- | --- |
| `decode` | rows of the step | empty | KV tokens of each row | of the step |
| `eager` | rows of the step | empty | KV tokens of each row | of the step |
| `prefill` | requests of the step | new tokens of each | cached tokens of each | of the step |
| `load` | empty | KV tokens brought to the device | empty | of the copy |
| `store` | empty | KV tokens written to the host | empty | of the copy |

`eager` is a decode step whose kernels are launched one by one, and may be left out.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tokenflow_sgl.lab.profiles.document import ProfileError

COLUMNS = ("kind", "batch", "tokens", "context", "seconds")

_USED = {
    "decode": {"batch": 1, "context": 1},  # column -> lowest allowed value
    "eager": {"batch": 1, "context": 1},
    "prefill": {"batch": 1, "tokens": 1, "context": 0},
    "load": {"tokens": 1},
    "store": {"tokens": 1},
}
EAGER = "eager"
KINDS = tuple(kind for kind in _USED if kind != EAGER)
"""Those that a profile needs."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One measured step or copy: a row of the CSV file.

    Attributes:
        line: Its line in the file.
        kind: One of `KINDS`, or `EAGER`.
        batch: Rows or requests; 0 for copies.
        tokens: New tokens of each request, or tokens copied; 0 for decode steps.
        context: KV tokens of each row, or cached tokens of each request; 0 for copies.
        seconds: What was measured, > 0.
    """

    line: int
    kind: str
    batch: int
    tokens: int
    context: int
    seconds: float

    @property
    def new_tokens(self) -> int:
        """New tokens of a whole prefill step."""
        return self.batch * self.tokens

    @property
    def attended(self) -> float:
        """Keys that a new token of a prefill attends to on average."""
        return self.context + self.tokens / 2


def read_measurements(path: Path) -> list[Measurement]:
    """All rows of a CSV file.

    Raises:
        ProfileError: The file cannot be read or a cell is wrong; the message names file, line
            and column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return list(_rows(path, file))
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise ProfileError(f"{path} is not UTF-8: {error.reason} at byte {error.start}.") from None


def _rows(path: Path, file: TextIO) -> Iterator[Measurement]:
    reader = csv.reader(file, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if sorted(header) != sorted(COLUMNS):
            raise ProfileError(
                f"{path}, line 1: the columns are {', '.join(header) or 'none'}; they must be "
                f"{', '.join(COLUMNS)}."
            )
        for cells in reader:
            if not cells:
                continue
            where = f"{path}, line {reader.line_num}"
            if len(cells) != len(header):
                raise ProfileError(f"{where}: {len(cells)} cells for {len(header)} columns.")
            row = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
            yield _measurement(where, reader.line_num, row)
    except csv.Error as error:
        raise ProfileError(f"{path}, line {reader.line_num}: {error}.") from None


def _measurement(where: str, line: int, row: dict[str, str]) -> Measurement:
    kind = row["kind"]
    if kind not in _USED:
        raise ProfileError(f"{where}, column kind: {kind!r}; allowed are {', '.join(_USED)}.")
    counts = {}
    for column in ("batch", "tokens", "context"):
        if column in _USED[kind]:
            counts[column] = _count(f"{where}, column {column}", row[column], _USED[kind][column])
        elif row[column]:
            raise ProfileError(
                f"{where}, column {column}: {row[column]!r}; a row of kind {kind} leaves it empty."
            )
    return Measurement(
        line=line,
        kind=kind,
        batch=counts.get("batch", 0),
        tokens=counts.get("tokens", 0),
        context=counts.get("context", 0),
        seconds=_seconds(f"{where}, column seconds", row["seconds"]),
    )


def _count(where: str, cell: str, low: int) -> int:
    if not (cell.isascii() and cell.isdigit() and len(cell) <= 12 and int(cell) >= low):
        raise ProfileError(f"{where}: {cell!r}; allowed is a whole number from {low} on.")
    return int(cell)


def _seconds(where: str, cell: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0.0):
        raise ProfileError(f"{where}: {cell!r}; allowed is a number of seconds above 0.")
    return value
