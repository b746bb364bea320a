"""Keeping the client's own pauses small, and measuring those that remain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import resource
import time
from array import array
from collections.abc import Iterator

_BEAT_S = 0.02


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """No garbage collection meanwhile: one of a large heap would delay every stamp.

    Streams leave no cycles behind, so nothing piles up.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def allow_many_files() -> None:
    """Raise this process's limit of open files as far as it may: every stream is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def new_event_loop() -> asyncio.AbstractEventLoop:
    """An event loop for many streams: uvloop's, which is cheaper, where it is installed."""
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopLag:
    """How late the event loop calls back: whatever delays it delays stamps as well.

    It beats fifty times per second. A long pause delays every beat that was due within it, so each
    of them counts; otherwise one that lasted a second would count as little as one of 20 ms.

    Attributes:
        late_s: How late each beat came, seconds.
    """

    def __init__(self) -> None:
        self.late_s = array("d")
        self._loop = asyncio.get_running_loop()
        self._beat()

    def stop(self) -> None:
        """Stop measuring the lag of the event loop."""
        self._timer.cancel()

    def _beat(self) -> None:
        self._due = time.monotonic() + _BEAT_S
        self._timer = self._loop.call_later(_BEAT_S, self._late)

    def _late(self) -> None:
        late = max(0.0, time.monotonic() - self._due)
        self.late_s.append(late)
        while (late := late - _BEAT_S) > 0:
            self.late_s.append(late)
        self._beat()
