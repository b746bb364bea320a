"""How figures are written on the live page: short, bounded, and honest where none is known."""

from __future__ import annotations

import math

MOST_LETTERS = 60
UNKNOWN = "not known"


def brief(text: str) -> str:
    """A text from outside, short enough for a line."""
    line = " ".join(text[: 4 * MOST_LETTERS].split())
    return line if len(line) <= MOST_LETTERS else f"{line[: MOST_LETTERS - 1]}…"


def count(number: float, one: str, more: str) -> str:
    """A number with its noun: "1 reader", "12 readers"."""
    return f"{figure(number)} {one if number == 1 else more}"


def figure(number: float) -> str:
    """A number without places."""
    return f"{number:,.0f}" if math.isfinite(number) else UNKNOWN


def share(part: float) -> str:
    """A share in percent."""
    return f"{part:.0%}" if math.isfinite(part) else UNKNOWN


def seconds(time: float) -> str:
    """A time, in milliseconds below a second."""
    if not math.isfinite(time):
        return UNKNOWN
    return f"{time:.2f} s" if time >= 1.0 else f"{1e3 * time:.0f} ms"


def lasted(time: float) -> str:
    """How long something has lasted."""
    return f"{time:.0f} s" if time < 120.0 else f"{time / 60.0:.0f} minutes"
