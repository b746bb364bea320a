"""Messages of faults that may come with every request: a storage that is down floods no log."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

SECONDS = 60.0
"""From a message to the next one of its kind."""


class Sparing(logging.Filter):
    """Lets each message of a logger through once a minute, whatever stands in it.

    The next one says how many were left out.

    Args:
        clock: Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        # By message: when the next one may come, and how many did not since the last one.
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged, or left out as one of many alike."""
        now = self._clock()
        with self._lock:
            due, left_out = self._said.get(record.msg, (-math.inf, 0))
            comes = now >= due
            self._said[record.msg] = (now + SECONDS, 0) if comes else (due, left_out + 1)
        if comes and left_out:
            record.msg = f"{record.getMessage()} (and {left_out} times more since it was last said)"
            record.args = None
        return comes
