"""The simulated device's pool for layers with a sliding window.

Running streams hold their windows in it. A paused stream's window is the prefix tree's: it can be
evicted at once, and is loaded or computed with the rest of the stream. Single tokens are counted,
whatever the size of a page.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import IntArray, Window

EVICTION_INTERVAL = 128
"""Tokens that SGLang lets leave a window before it frees them (SGLANG_SWA_EVICTION_INTERVAL)."""


class WindowPool:
    """Which part of the pool is free.

    Args:
        total: Its tokens.
        tokens: Of a window.
        chunk: Tokens of prompts that a step computes at most.

    Attributes:
        need: What a stream needs of it.
    """

    def __init__(self, total: int, tokens: int, chunk: int) -> None:
        self.total = total
        self.tokens = tokens
        self.need = Window(2 * tokens + EVICTION_INTERVAL, chunk)

    def free(self, lengths: IntArray, chunked: int) -> int:
        """What streams of these lengths leave, and one of whose prompt so much is computed."""
        return self.total - self.held(lengths) - min(chunked, self.need.tokens)

    def held(self, lengths: IntArray) -> int:
        """Tokens that streams of these lengths have there."""
        return int(np.minimum(lengths, self.need.tokens).sum())

    def growth(self, lengths: IntArray, steps: int) -> int:
        """Tokens that streams of these lengths need for so many more each."""
        return int(np.clip(self.need.tokens - lengths, 0, steps).sum())

    def reserve(self, computed: int, later: int, chunk: int) -> int:
        """Tokens that SGLang reserves for a prefill of `computed` tokens and `later` ones.

        As `estimate_swa_kv_tokens` does for pages of a token. chunk: that a step computes at most.
        """
        tail = max(min(computed, chunk) - self.tokens, 0)
        return tail + min(computed + later, self.tokens) + 1
