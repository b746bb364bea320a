"""How fast readers read where neither a request nor an operator says otherwise."""

from __future__ import annotations

from collections.abc import Mapping

NAMED_RATES: Mapping[str, float] = {
    # 300 words a minute, a fast silent reader, at 1.3 tokens a word, and some reserve.
    "reading": 10.0,
    # 150 words a minute of speech, with the same reserve.
    "listening": 5.0,
    # There is no reader; the rate is the agent's claim on the engine relative to the others.
    "agent": 50.0,
}
"""Tokens per second of the classes that every server knows."""
DEFAULT_CLASS = "reading"
"""Class of a request that states none."""
