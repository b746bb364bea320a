"""JSON that does not keep to lines: a list that goes over many, or one object behind another.

It is read piece by piece: of a list of a million objects only one is in memory at a time.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tokenflow_sgl.lab.traces.loaders.source import JSON_LINE, Progress, Records

_CHUNK = 1 << 20
"""Bytes that are read at once; more where an object is larger."""
_NEAR = 16
"""Characters before the end of what was read within which a problem may be that more follows."""
_SPACE = re.compile(r"[ \t\r\n]*")


class Documents(Records):
    """Objects of a JSON file, whether it is a list of them, one alone, or one behind another.

    Errors count objects, from 1, where `Records` counts lines.

    Args:
        path: The file, or one that ends in .gz.
        progress: Told how far reading is.
        limit: Largest object, in characters.
        constants: Take NaN and Infinity, as in `Records`.
        kind: The name of the format in a spec.
    """

    def __init__(
        self,
        path: Path,
        progress: Progress | None = None,
        limit: int = JSON_LINE,
        *,
        constants: bool = False,
        kind: str,
    ) -> None:
        super().__init__(path, progress, limit, constants=constants, kind=kind)
        self.unit = "object"
        self._text = ""
        self._place = 0
        self._wanted = _CHUNK

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield the objects.

        Raises:
            TraceError: The file is no JSON of this shape, or an object is too large.
        """
        chunks = self._opened(self._chunks)
        first = self._next(chunks)
        if not first:
            self.error("is empty")
        if first == "[":
            self._place += 1
            yield from self._elements(chunks)
            if self._next(chunks):
                self.error("has more behind the end of its list")
        else:
            while self._next(chunks):
                yield self._object(chunks)

    def _elements(self, chunks: Iterator[str]) -> Iterator[dict[str, Any]]:
        """The objects of a list, up to its end."""
        if self._next(chunks) != "]":
            yield self._object(chunks)
            while (letter := self._next(chunks)) == ",":
                self._place += 1
                self._next(chunks)
                yield self._object(chunks)
            if letter != "]":
                self.misfit(
                    "is followed by neither a comma nor the end of the list"
                    if letter
                    else "is the last one of a list that does not end: the file may be cut"
                )
        self._place += 1

    def _object(self, chunks: Iterator[str]) -> dict[str, Any]:
        """The object at this place."""
        self.line += 1
        while True:
            try:
                value, self._place = self._decoder.raw_decode(self._text, self._place)
                break
            except json.JSONDecodeError as error:
                # Of a string without an end the decoder gives its begin.
                cut = error.msg.startswith("Unterminated") or error.pos + _NEAR > len(self._text)
                if not cut or not self._more(chunks):
                    at = error.pos - self._place + 1
                    self.misfit(f"is not JSON: {error.msg} at its character {at}")
            except (ValueError, RecursionError) as error:
                self.error(f"is not JSON that can be used: {error}")
        if not isinstance(value, dict):
            self.misfit("is no JSON object; allowed are objects alone")
        self._rows += 1
        self._wanted = _CHUNK
        return value

    def _next(self, chunks: Iterator[str]) -> str:
        """The character at this place, behind white space; empty: the file ends."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if not self._more(chunks):
                return ""

    def _more(self, chunks: Iterator[str]) -> bool:
        """Read on; whether there was more."""
        rest = self._text[self._place :]
        if len(rest) > self._limit:
            self.error(f"is longer than {self._limit} characters, the most that is read")
        self._wanted = max(_CHUNK, len(rest))  # an object of n pieces is tried log n times
        more = next(chunks, "")
        if more:
            self._text, self._place = rest + more, 0
        return bool(more)

    def _chunks(self, file: BinaryIO, raw: BinaryIO, size: int) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        while data := file.read(self._wanted):
            yield from self._decoded(decoder, data)
            if self._progress is not None:
                self._progress(raw.tell(), size)
        yield from self._decoded(decoder, b"", last=True)

    def _decoded(
        self, decoder: codecs.IncrementalDecoder, data: bytes, *, last: bool = False
    ) -> Iterator[str]:
        try:
            text = decoder.decode(data, last)
        except UnicodeDecodeError:
            self.line = 0
            self.error("has bytes that are not UTF-8 text")
        if text:
            yield text
