"""Streams and events that carry a completion time instead of work.

They take the place of ``torch.cpu.Stream`` and its family, so that SGLang's overlap scheduling,
layer-wise KV loads and copy acknowledgements run unchanged: enqueueing work moves a stream's
completion time, waiting for an event passes it on, and only synchronising really sleeps. Times are
seconds on :func:`now`, the wall clock; a slowed-down device enqueues longer work.
"""

import time
from typing import Any

import torch

from tokenflow_sgl_emulator.stream_context import StreamContext, current_or

__all__ = ["Event", "Stream", "StreamContext", "current_stream"]

now = time.perf_counter
"""The wall clock of every stream, in seconds: SGLang's own clock for request time stamps."""

_SPIN_S = 1e-4
"""The last stretch of a wait is spun: Linux wakes a sleeper some 60 microseconds late."""


def sleep_until(moment: float) -> None:
    """Return at ``moment`` on :func:`now`, or at once if it has passed."""
    while (left := moment - now()) > 0:
        if left > _SPIN_S:
            time.sleep(left - _SPIN_S)


class Stream:
    """A queue of device work that is done at ``done_at``.

    Args:
        device: Ignored; there is one device.
        priority: Ignored; streams do not compete for the emulated device.
    """

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device = torch.device("cpu")
        self.done_at = 0.0

    def enqueue(self, seconds: float) -> None:
        """Add work of that wall-clock length, which cannot start before it is submitted."""
        self.done_at = max(self.done_at, now()) + seconds

    def wait_event(self, event: "Event") -> None:
        """Work enqueued from here on starts after ``event``."""
        self.done_at = max(self.done_at, event.done_at)

    def wait_stream(self, stream: "Stream") -> None:
        """Work enqueued from here on starts after what ``stream`` has now."""
        self.done_at = max(self.done_at, stream.done_at)

    def record_event(self, event: "Event | None" = None) -> "Event":
        """An event that is done when the work so far is."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all work is done."""
        return now() >= self.done_at

    def synchronize(self) -> None:
        """Wait for all work."""
        sleep_until(self.done_at)


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
        self.done_at = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Take the place behind the stream's work so far."""
        self.done_at = max((stream or current_stream()).done_at, now())

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for this event."""
        (stream or current_stream()).wait_event(self)

    def query(self) -> bool:
        """Whether the event has happened."""
        return now() >= self.done_at

    def synchronize(self) -> None:
        """Wait for the event."""
        sleep_until(self.done_at)

    def elapsed_time(self, end_event: "Event") -> float:
        """Milliseconds of wall clock from this event to a later one."""
        return (end_event.done_at - self.done_at) * 1e3


_default = Stream()


def current_stream(device: Any = None) -> Stream:
    """The stream that this thread enqueues on."""
    stream: Stream = current_or(_default)
    return stream
