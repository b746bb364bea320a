"""A file of JSON lines that a thread of its own writes: no disk delays the scheduler.

A disk that is full, slow or gone costs lines, which are counted; the server's log says it once, and
once more when lines are written again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import logging.handlers
import math
import os
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

logger = logging.getLogger(__name__)

MOST_BYTES = 32 * 1024 * 1024
KEPT_FILES = 4
"""Of these sizes, the present one not counted."""
MOST_WAITING = 1000
"""Lines that may wait for the disk; a line has some kilobytes."""
RETRY_SECONDS = 1.0
"""From a failure to the next attempt."""
QUIET_SECONDS = 10.0
"""Without a loss, until lines count as written again: a disk that is full now and then floods no
log either."""


class LineFile:
    """Appends lines, in the order in which they come.

    Args:
        path: Of the present file; older ones get a number behind it.
        lost: Is called for each line that is lost, by either thread.
    """

    def __init__(self, path: Path, lost: Callable[[], None]) -> None:
        self._path = path
        self._lost = lost
        self._file = _Rotated(path)
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(MOST_WAITING)
        self._writing: threading.Thread | None = None
        self._retry = -math.inf
        # What was lost since lines were last written as they came, and when the last one was.
        self._lock = threading.Lock()
        self._missed, self._missed_at = 0, -math.inf

    def append(self, line: dict[str, Any]) -> None:
        """Have a line written; returns at once and raises nothing."""
        try:
            if self._writing is None:
                writing = threading.Thread(target=self._work, name="tokenflow-lines", daemon=True)
                writing.start()
                self._writing = writing
            self._lines.put_nowait(line)
        except queue.Full:
            self._lose("the disk does not keep up")
        except RuntimeError as error:  # no more threads
            self._lose(str(error))

    def close(self) -> None:
        """Wait for what came so far, and close the file; a line that comes later opens it again."""
        if self._writing is not None:
            self._lines.put(None)
            self._writing.join()
            self._writing = None
        self._file.drop()

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            self._write(line)

    def _write(self, line: dict[str, Any]) -> None:
        if time.monotonic() < self._retry:
            self._lose("")  # the failure before it was told
            return
        try:
            self._file.handle(_record(json.dumps(line, separators=(",", ":"))))
        except Exception as error:
            self._file.drop()
            self._retry = time.monotonic() + RETRY_SECONDS
            self._lose(getattr(error, "strerror", None) or str(error))
            return
        with self._lock:
            quiet = time.monotonic() - self._missed_at >= QUIET_SECONDS
            missed, self._missed = (self._missed, 0) if quiet else (0, self._missed)
        if missed:
            logger.warning(
                "tokenflow: %r is written again; %d lines were lost", str(self._path), missed
            )

    def _lose(self, why: str) -> None:
        self._lost()
        with self._lock:
            first = not self._missed
            self._missed, self._missed_at = self._missed + 1, time.monotonic()
        if first:
            logger.error(
                "tokenflow: %r cannot be written: %s; it is tried again, and until it is written, "
                "lines that are lost are counted and not logged",
                str(self._path),
                why,
            )


class _Rotated(logging.handlers.RotatingFileHandler):
    """Raises what goes wrong, instead of printing it, and leaves no half of a line before a whole.

    Such a half is what a full disk, or a process that was killed, has written last.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(
            path, maxBytes=MOST_BYTES, backupCount=KEPT_FILES, encoding="utf-8", delay=True
        )

    def _open(self) -> Any:
        with contextlib.suppress(FileNotFoundError):
            _cut(Path(self.baseFilename))
        return super()._open()

    def handleError(self, record: logging.LogRecord) -> NoReturn:
        """The exception that is being handled goes on to the caller."""
        raise

    def drop(self) -> None:
        """Close the file; what is in its buffer is lost if it cannot be written."""
        stream, self.stream = self.stream, None
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()


def _cut(path: Path) -> None:
    """Take off what follows the last end of a line, if it is a file."""
    if not path.is_file():
        return
    with path.open("rb+") as file:
        end = position = file.seek(0, os.SEEK_END)
        while position > 0:
            size = min(position, 4096)
            position -= size
            file.seek(position)
            found = file.read(size).rfind(b"\n")
            if found >= 0:
                position += found + 1
                break
        if position < end:
            file.truncate(position)


def _record(text: str) -> logging.LogRecord:
    return logging.LogRecord(__name__, logging.INFO, "", 0, text, None, None)
