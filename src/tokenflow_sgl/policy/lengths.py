"""How long an output will be: the quantile of what was seen, given what is already there.

A population mean doubles the stalls (it hides the long outputs that hurt); the request's
own limit alone over-reserves where clients ask for 4,096 and read 300. So: the
conditional quantile of recent output lengths among those at least as long as this one
already is, capped by the request's `max_new_tokens`, which is also the answer while
there is too little evidence.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray


class OutputLengths:
    """Recent output lengths and the conditional quantile over them.

    quantile: in (0, 1]; 1.0 is the longest seen. window: how many outputs are remembered.
    evidence: fewer outputs than this at least as long as the question: answer the limit.
    """

    def __init__(self, quantile: float = 0.9, window: int = 1024, evidence: int = 16) -> None:
        if not 0.0 < quantile <= 1.0:
            raise ValueError(f"quantile is {quantile!r}; allowed is above 0 and at most 1")
        self._quantile = quantile
        self._evidence = evidence
        self._recent: deque[int] = deque(maxlen=window)
        self._sorted: NDArray[np.int64] | None = None

    def observe(self, length: int) -> None:
        """A stream ended by itself after `length` output tokens."""
        self._recent.append(length)
        self._sorted = None

    def expected(
        self, generated: NDArray[np.int64], limit: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Estimated total output tokens of streams with `generated` so far, at most `limit`.

        Never below generated + 1: a stream that still runs will produce one more.
        """
        floor = generated + 1.0
        if len(self._recent) < self._evidence:
            return np.asarray(np.maximum(limit, floor), dtype=np.float64)
        if self._sorted is None:
            self._sorted = np.sort(np.fromiter(self._recent, dtype=np.int64))
        seen = self._sorted
        below = np.searchsorted(seen, generated, side="right")
        left = len(seen) - below
        rank = below + np.ceil(self._quantile * left).astype(np.int64) - 1
        guess = seen[np.clip(rank, 0, len(seen) - 1)]
        guess = np.where(left >= self._evidence, guess, limit)
        return np.asarray(np.maximum(np.minimum(guess, limit), floor), dtype=np.float64)
