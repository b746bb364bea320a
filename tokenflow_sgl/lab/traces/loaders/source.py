"""Reads a trace file line by line, with bounds; errors name the place and the problem."""

from __future__ import annotations

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from tokenflow_sgl.lab.traces.generators.request_lengths import MAX_TOKENS
from tokenflow_sgl.lab.traces.loaders.recognised import seems
from tokenflow_sgl.lab.traces.loaders.said import shown
from tokenflow_sgl.lab.traces.request import TraceError

Progress = Callable[[int, int], None]
"""Called from time to time while reading, with the bytes read so far and those of the file."""

CSV_LINE = 64 * 1024
"""Longest line of a CSV file, bytes."""
JSON_LINE = 32 * 1024 * 1024
"""Longest line of a JSON Lines file, bytes."""

_COUNT = f"a whole number from 0 to {MAX_TOKENS}"


class Source:
    """A text file that is being read; `line` is the current line, from 1, or another `unit`.

    No error has words of the file, which may be somebody's: only numbers and times.

    Files that end in .gz are decompressed. Lines are never read beyond their limit, so that a file
    without line ends costs no memory.
    """

    def __init__(
        self, path: Path, line_limit: int, progress: Progress | None = None, kind: str = ""
    ) -> None:
        self.path = path
        self.kind = kind
        self.line = 0
        self.unit = "line"
        self._limit = line_limit
        self._progress = progress
        self._raw: BinaryIO | None = None

    def fail(self, column: str, value: object, allowed: str) -> NoReturn:
        """Raise `TraceError`: this value in this column of the current line is not allowed."""
        self.error(f"is {shown(value)}; allowed is {allowed}", column)

    def misfit(self, problem: str, column: str | None = None) -> NoReturn:
        """Raise `TraceError`: the file is not of this format; which it seems to be is said, too."""
        self.error(f"{problem}{seems(self.path, self.kind)}", column)

    def error(self, problem: str, column: str | None = None) -> NoReturn:
        """Raise `TraceError` with the place in front: file, line if any, column if given."""
        place = str(self.path)
        if self.line:
            place += f", {self.unit} {self.line}"
        if column is not None:
            place += f", column {column}"
        if self._raw is not None:
            # Now: a kept error keeps the generators that read from the file.
            self._raw.close()
        raise TraceError(f"{place}: {problem}") from None

    def lines(self) -> Iterator[str]:
        """Yield the lines without their ends, counting them.

        Raises:
            TraceError: The file cannot be read, or a line is too long or not UTF-8.
        """
        yield from self._opened(self._lines)

    def _opened(self, read: Callable[[BinaryIO, BinaryIO, int], Iterator[str]]) -> Iterator[str]:
        """What `read` makes of the open file: unpacked and as it is, and its size on the disk."""
        try:
            size = self.path.stat().st_size
            with self.path.open("rb") as raw:
                self._raw = raw
                if self.path.suffix == ".gz":
                    with gzip.open(raw) as unpacked:
                        yield from read(unpacked, raw, size)  # type: ignore[arg-type]
                else:
                    yield from read(raw, raw, size)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise TraceError(f"{self.path}: cannot be read: {reason}") from error

    def _lines(self, file: BinaryIO, raw: BinaryIO, size: int) -> Iterator[str]:
        while line := file.readline(self._limit + 1):
            self.line += 1
            if len(line) > self._limit:
                self.error(f"is longer than {self._limit} bytes, the most that is read")
            try:
                text = line.decode("utf-8-sig" if self.line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                self.error(f"byte {error.start + 1} of the line is not UTF-8 text")
            if self._progress is not None and not self.line % 1024:
                self._progress(raw.tell(), size)
            yield text.rstrip("\r\n")


class Table(Source):
    """A CSV file with a header line.

    Args:
        path: The file.
        columns: Columns that it must have.
        progress: Told how far reading is.
        optional: Columns that it may have.
        bare: How the first value of a row looks in a file that may lack its header line.
        kind: The name of the format in a spec.
    """

    def __init__(
        self,
        path: Path,
        columns: Sequence[str],
        progress: Progress | None,
        *,
        optional: Sequence[str] = (),
        bare: re.Pattern[str] | None = None,
        kind: str,
    ) -> None:
        super().__init__(path, CSV_LINE, progress, kind)
        self.columns = tuple(columns)
        self.optional = tuple(optional)
        self._bare = bare

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Yield the wanted columns of each data row, in the order asked for; others are ignored.

        Optional columns come last; one that the file does not have is empty.

        Raises:
            TraceError: A column is missing or twice there, or a row is longer or shorter than the
                header.
        """
        reader: Iterator[list[str]] = csv.reader(self.lines(), strict=True)
        try:
            header = next(reader, None)
            if header is None:
                self.error("is empty; a header line is expected")
            header = [name.strip(" ") for name in header]
            if self._bare is not None and header and self._bare.fullmatch(header[0]):
                header, reader = list(self.columns), chain([header], reader)
            for column in (*self.columns, *self.optional):
                if header.count(column) > 1 or (column in self.columns and column not in header):
                    state = "missing" if column not in header else "there more than once"
                    needed = ", ".join(self.columns)
                    self.misfit(f"the column is {state}; the header must have {needed}", column)
            width = len(header)
            wanted = (*self.columns, *self.optional)
            complete = all(column in header for column in wanted)
            pick = itemgetter(*(header.index(c) if c in header else width for c in wanted))
            for row in reader:
                if len(row) != width:
                    if not row:
                        continue  # an empty line
                    after = f"number {min(len(row), width) + 1}"
                    missing = header[len(row)] if len(row) < width else after
                    column = missing if missing in wanted else after
                    self.error(f"the row has {len(row)} values, the header {width}", column)
                yield pick(row if complete else [*row, ""])
        except csv.Error as error:
            self.error(f"is not CSV: {error}")

    def count(self, column: str, text: str) -> int:
        """Read a number of tokens (or another count)."""
        # int() also takes signs, spaces, underscores and other scripts' digits.
        if text.isascii() and text.isdigit() and len(text) <= 19:
            value = int(text)
            if value <= MAX_TOKENS:
                return value
        self.fail(column, text, _COUNT)

    def number(self, column: str, text: str, low: float = 0.0) -> float:
        """Read a finite number of at least `low`."""
        try:
            value = float(text) if "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and value >= low):
            self.fail(column, text, f"a number of at least {low:g}")
        return value


class Records(Source):
    """A JSON Lines file: one object a line.

    Args:
        path: The file.
        progress: Told how far reading is.
        line_limit: Longest line, bytes.
        constants: Take NaN and Infinity, which JSON does not have but Python writes. They are still
            refused where a number is read.
        kind: The name of the format in a spec.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress | None = None,
        line_limit: int = JSON_LINE,
        *,
        constants: bool = False,
        kind: str,
    ) -> None:
        super().__init__(path, line_limit, progress, kind)
        self._rows = 0
        self._decoder = json.JSONDecoder() if constants else _DECODER

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the objects; empty lines are skipped.

        Raises:
            TraceError: A line is no JSON object.
        """
        for text in self.lines():
            if not text.strip():
                continue
            try:
                row = self._decoder.decode(text)
            except json.JSONDecodeError as error:
                if not self._rows and text.lstrip()[:1] in ("{", "[") and error.pos >= len(text):
                    self.misfit(
                        "begins JSON that does not end in this line; allowed is one object a line"
                    )
                self.misfit(f"is not JSON: {error.msg} at character {error.colno}")
            except (ValueError, RecursionError) as error:
                self.error(f"is not JSON that can be used: {error}")
            if not isinstance(row, dict):
                self.misfit(f"is a JSON {_json_type(row)}; allowed is an object")
            self._rows += 1
            yield row
        if not self.line:
            self.error("is empty")

    def value(self, row: dict[str, Any], column: str) -> Any:
        """The value of a column that must be there."""
        if column not in row:
            self.misfit("the column is missing", column)
        return row[column]

    def count(self, row: dict[str, Any], column: str, low: int = 0) -> int:
        """Read a number of tokens (or another count) of at least `low`."""
        value = self.value(row, column)
        if type(value) is not int or not low <= value <= MAX_TOKENS:
            self.fail(column, value, _COUNT.replace(" 0 ", f" {low} "))
        return value

    def number(self, row: dict[str, Any], column: str, low: float = 0.0) -> float:
        """Read a finite number of at least `low`, as a float."""
        value = self.value(row, column)
        if type(value) not in (int, float) or not low <= value < math.inf or value > 1e300:
            self.fail(column, value, f"a number of at least {low:g}")
        return float(value)

    def text(self, row: dict[str, Any], column: str) -> str:
        """Read a field of a record that has to be a string."""
        value = self.value(row, column)
        if not isinstance(value, str) or (not value.isascii() and not _encodable(value)):
            self.fail(column, value, "a string")
        return value

    def list(self, row: dict[str, Any], column: str) -> list[Any]:
        """Read a field of a record that has to be a list."""
        value = self.value(row, column)
        if not isinstance(value, list):
            self.fail(column, value, "a list")
        return value


def _encodable(text: str) -> bool:
    """Whether it has no half of a surrogate pair, which JSON can spell and no file takes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _json_type(value: object) -> str:
    names = {list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")
