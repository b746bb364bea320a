"""Whether a launch is only judged: its options are parsed, and no server will be started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_judged: ContextVar[bool] = ContextVar("judged", default=False)


def is_judged() -> bool:
    """Whether it is; then nothing of a server needs to be imported or put in place."""
    return _judged.get()


@contextmanager
def judged() -> Iterator[None]:
    """Only judge what is parsed meanwhile."""
    token = _judged.set(True)
    try:
        yield
    finally:
        _judged.reset(token)
