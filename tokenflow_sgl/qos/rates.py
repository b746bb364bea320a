"""The rates that a reader may have: one bound for servers, which refuse others, and for clients."""

from __future__ import annotations

LOWEST_RATE, HIGHEST_RATE = 0.1, 1000.0
"""Tokens per second. Below, a stream lasts for hours; above is faster than any reader."""
