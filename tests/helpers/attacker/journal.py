"""What all who take part share: what was done, what was wrong, and when streams were thrown out."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

LAST = 80
"""Actions that are told when something is wrong."""


class Journal:
    """One round's, of one server. All methods may be called from any thread.

    Args:
        late: Seconds after the answer to a sweep in which it may still end what has come since.

    Attributes:
        noticed: Set once something is wrong: the others stop.
        wrong: What was.
        counts: How often what happened.
    """

    def __init__(self, late: float = 0.0) -> None:
        self._late = late
        self.noticed = threading.Event()
        self.wrong: list[str] = []
        self.counts: collections.Counter[str] = collections.Counter()
        self._lines: collections.deque[str] = collections.deque(maxlen=LAST)
        self._started = time.monotonic()
        self._sweeps: list[list[float]] = []
        self._lock = threading.Lock()

    def note(self, actor: str, what: str) -> None:
        """Somebody does something."""
        self._lines.append(f"{time.monotonic() - self._started:8.3f} {actor}: {what}")

    def count(self, what: str) -> None:
        """It happened once more."""
        with self._lock:
            self.counts[what] += 1

    def accuse(self, actor: str, what: str) -> None:
        """Something is wrong: the round is over."""
        self.note(actor, f"WRONG: {what}")
        self.wrong.append(f"{actor}: {what}")
        self.noticed.set()

    @contextmanager
    def sweep(self) -> Iterator[None]:
        """Meanwhile the operator asks for the end of whatever is served."""
        span = [time.monotonic(), float("inf")]
        self._sweeps.append(span)
        try:
            yield
        finally:
            span[1] = time.monotonic()

    def swept(self, since: float) -> bool:
        """Whether that happened after `since`, by time.monotonic()."""
        return any(end + self._late >= since for _, end in self._sweeps)

    def last(self) -> str:
        """The last actions, a line each."""
        return "\n".join(self._lines)
