"""Tokens of chunks of which only the sum is known: servers that report usage at the end.

A chunk counted as one token where it has several makes a reader who never waited look stalled, and
one counted as more makes a reader who waited look served. The text tells how many it has, nearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spread(tokens: int, sizes: Sequence[int]) -> list[int]:
    """Share tokens among chunks by their text; each has at least one, as it has text.

    Where there are fewer tokens than chunks, the first chunk has one all the same: the first token
    came with it.

    Args:
        tokens: How many all chunks have together, at least 0.
        sizes: Bytes of text of each chunk (UTF-8: a token has nearly as many in every script),
            each at least 1.

    Returns:
        Tokens of each chunk, `tokens` in all.
    """
    enough, whole = tokens >= len(sizes), sum(sizes)
    counts: list[int] = []
    given = size = 0
    for later, one in zip(range(len(sizes) - 1, -1, -1), sizes, strict=True):
        size += one
        if enough:  # rounded to the nearest, with one for this chunk and for each later one
            upto = (2 * tokens * size + whole) // (2 * whole)
            upto = min(max(upto, given + 1), tokens - later)
        else:
            upto = -(-tokens * size // whole)
        counts.append(upto - given)
        given = upto
    return counts


def text_size(text: object) -> int:
    """Bytes of a text, or of what stands in its place; half a surrogate pair counts as one."""
    return len(str(text).encode(errors="replace"))


def call_size(call: dict[str, Any]) -> int:
    """Bytes of what a model has written of a call of a tool, or 1: there is some."""
    function = call.get("function") or {}
    return max(sum(text_size(function.get(key) or "") for key in ("name", "arguments")), 1)
