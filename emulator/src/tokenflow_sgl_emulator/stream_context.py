"""Which of our streams a thread works on: the part that all kinds of them share."""

import threading
from types import TracebackType
from typing import Any


class _Current(threading.local):
    """Each thread's current stream; None: the device's default stream."""

    stream: Any = None


_current = _Current()


def current_or(default: Any) -> Any:
    """The stream of the innermost `StreamContext` of this thread, or the default."""
    return _current.stream or default


class StreamContext:
    """Make a stream the current one inside a ``with`` block; None changes nothing."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._outer: list[Any] = []

    def __enter__(self) -> None:
        self._outer.append(_current.stream)
        if self.stream is not None:
            _current.stream = self.stream

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _current.stream = self._outer.pop()
