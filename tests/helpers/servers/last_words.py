"""What a server that died has written last, told with the failure of the test that it died in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LINES = 12
"""Of a traceback, from its end."""


def last_exception(log: str) -> str:
    """The end of the last traceback in a log, with what it says; "" if there is none."""
    lines = log.splitlines()
    begins = [at for at, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if not begins:
        return ""
    traceback = lines[begins[-1] :]
    ends = (at for at, line in enumerate(traceback) if not line.strip())
    return "\n".join(traceback[: next(ends, len(traceback))][-LINES:])


@contextmanager
def telling_why(log: Path) -> Iterator[None]:
    """What fails inside says, too, what the log's last exception is.

    A client sees only that its connection ends, and the log is gone with the run.
    """
    try:
        yield
    except Exception as failed:
        if why := last_exception(log.read_text(errors="replace")):
            failed.add_note(f"The last exception in the server's log:\n{why}")
        raise
