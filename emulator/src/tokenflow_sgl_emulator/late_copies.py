"""HiCache copies that land as late as SGLang lets them: a fault injector for its callers.

On this platform copies are done at once, so code that forgets to wait for one still reads the
right bytes. With ``TOKENFLOW_EMU_LATE_COPIES`` a copy runs only when something waits for it, or has
asked the given number of times whether it has ended. Until then its target keeps its old content
and its source is not read: code that overwrites the source too early changes what arrives.
Computing is done at once, on whatever stream.

The streams take the place of ``torch.cpu.Stream`` and its family.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from tokenflow_sgl_emulator.stream_context import StreamContext, current_or

__all__ = ["Event", "Stream", "StreamContext", "current_stream"]

LATE_VARIABLE = "TOKENFLOW_EMU_LATE_COPIES"
"""How often SGLang has to ask whether a copy has ended before it has; 0: copies are not late."""


@cache
def lateness() -> int:
    """How often an event is asked in vain.

    Raises:
        ValueError: The environment variable is not a whole number from 0.
    """
    text = os.environ.get(LATE_VARIABLE, "0")
    if not text.isdecimal():
        raise ValueError(f"{LATE_VARIABLE} is {text!r}; allowed is a whole number from 0")
    return int(text)


class Stream:
    """Copies in their order, done or not.

    Args:
        device: Ignored; there is one device.
        priority: Ignored; streams do not compete.
    """

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("cpu")
        self.submitted = 0
        self.done = 0
        self._work: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()  # restorations submit from a thread of their own

    def submit(self, work: Callable[[], None]) -> None:
        """Add a copy."""
        with self._lock:
            self._work.append(work)
            self.submitted += 1

    def catch_up(self, mark: int) -> None:
        """Do the work up to the ``mark``-th."""
        with self._lock:
            while self.done < mark:
                self._work.popleft()()
                self.done += 1

    def wait_event(self, event: "Event") -> None:
        """What comes after may rely on the event: it happens now."""
        event.synchronize()

    def wait_stream(self, stream: "Stream") -> None:
        """What comes after may rely on the stream's work so far: it is done now."""
        stream.synchronize()

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event behind the work so far."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done."""
        return self.done == self.submitted

    def synchronize(self) -> None:
        """Do all work."""
        self.catch_up(self.submitted)


class Event:
    """A point in a stream.

    Args:
        enable_timing: Ignored; timing is always on.
        blocking: Ignored.
        interprocess: Ignored.
    """

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._stream: Stream | None = None
        self._mark = 0
        self._asked = 0
        self._happened_at = time.perf_counter()

    def record(self, stream: Stream | None = None) -> None:
        """Take the place behind the stream's work so far."""
        stream = stream or current_stream()
        at_once = stream.query()
        stream.submit(self._happen)
        self._stream, self._mark, self._asked = stream, stream.submitted, 0
        if at_once:
            self.synchronize()

    def _happen(self) -> None:
        self._happened_at = time.perf_counter()

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for this event: it happens now."""
        self.synchronize()

    def query(self) -> bool:
        """Whether the event has happened; asked often enough, it has."""
        if self._stream is None or self._stream.done >= self._mark:
            return True
        self._asked += 1
        if self._asked <= lateness():
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        """Do the work before the event."""
        if self._stream is not None:
            self._stream.catch_up(self._mark)

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds from this event to a later one."""
        return (end_event._happened_at - self._happened_at) * 1e3


_default = Stream()


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread submits to."""
    stream: Stream = current_or(_default)
    return stream


def copy(work: Callable[[], None]) -> None:
    """Do a copy on the current stream: at once, or late."""
    if lateness():
        current_stream().submit(work)
    else:
        work()
