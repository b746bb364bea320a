"""Numbers and outside text as words for people."""

from __future__ import annotations

import math


def number(value: float) -> str:
    """Write a number with three digits or all before the point; a dash for NaN and infinity."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size == 0 or size >= 100:
        return f"{value:,.0f}"
    return f"{value:.{min(2 - math.floor(math.log10(size)), 6)}f}"


def plain(text: str, limit: int) -> str:
    """Make outside text (names, errors) fit to show: one line, no control characters, cut."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    shown = " ".join(shown.split())
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def interval(ratio: float, low: float, high: float) -> str:
    """Write a ratio with its interval: `0.52x (0.48 to 0.57)`; a dash where there is none."""
    if not math.isfinite(ratio):
        return "-"
    digits = 3 if ratio < 0.1 or 0.9 < ratio < 1.1 else 2 if ratio < 10 else 1
    shown = f"{ratio:,.{digits}f}x"
    if not math.isfinite(low):
        return shown
    return f"{shown} ({low:,.{digits}f} to {high:,.{digits}f})"
