"""The simulated device's pool for layers with a sliding window.

Running streams hold their windows in it. A paused stream's window is the prefix tree's: it can be
evicted at once, and is loaded or computed with the rest of the stream. Whole pages are counted.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from tokenflow_sgl.contract import IntArray, Window
from tokenflow_sgl.contract.needs import most_kept

Counts = TypeVar("Counts", int, IntArray)

EVICTION_INTERVAL = 128
"""Tokens that SGLang lets leave a window before it frees them (SGLANG_SWA_EVICTION_INTERVAL)."""


class WindowPool:
    """Which part of the pool is free.

    Args:
        total: Its tokens.
        tokens: Of a window.
        chunk: Tokens of prompts that a step computes at most.
        page: Tokens of a page.

    Attributes:
        need: What a stream needs of it.
    """

    def __init__(self, total: int, tokens: int, chunk: int, page: int = 1) -> None:
        self.total = total
        self.tokens = tokens
        self._page = page
        self.need = Window(most_kept(tokens, EVICTION_INTERVAL, page), chunk)

    def free(self, lengths: IntArray, chunked: int) -> int:
        """What streams of these lengths leave, and one of whose prompt so much is computed."""
        return self.total - self.held(lengths) - min(self._paged(chunked), self.need.tokens)

    def held(self, lengths: IntArray) -> int:
        """Tokens that streams of these lengths have there."""
        return int(np.minimum(self._paged(lengths), self.need.tokens).sum())

    def growth(self, lengths: IntArray, steps: int) -> int:
        """Tokens that streams of these lengths need for so many more each."""
        return self.held(lengths + steps) - self.held(lengths)

    def reserve(self, computed: int, later: int, chunk: int) -> int:
        """Tokens that SGLang reserves for a prefill of `computed` tokens and `later` ones.

        As `estimate_swa_kv_tokens` does. chunk: that a step computes at most.
        """
        tail = max(min(computed, chunk) - self.tokens, 0)
        return tail + min(computed + later, self.tokens) + self._page

    def steps(self, streams: int, free: int) -> int:
        """Decode steps of so many streams for which so many free tokens are enough, at least."""
        return free // (streams * self._page) * self._page

    def _paged(self, tokens: Counts) -> Counts:
        return -(-tokens // self._page) * self._page
