"""How long an output will be: the quantile of what was seen, given what is already there.

A population mean doubles the stalls (it hides the long outputs that hurt); the request's
own limit alone over-reserves where clients ask for 4,096 and read 300. So: the
conditional quantile of recent output lengths among those at least as long as this one
already is, capped by the request's `max_new_tokens`, which is also the answer while
there is too little evidence.

An answer that was cut off, by its limit or by its client, says only that it would have
been longer: without that, forty warm-up requests of 32 tokens would promise that the next
2,000-token answers end after 32. The estimate with such censored lengths is Kaplan and
Meier's ("Nonparametric estimation from incomplete observations", 1958); without any it is
the plain quantile.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

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
        self._recent: deque[tuple[int, bool]] = deque(maxlen=window)
        self._curve: _Curve | None = None

    def observe(self, length: int, *, cut_off: bool = False) -> None:
        """A stream ended after `length` output tokens; `cut_off`: not by itself."""
        self._recent.append((length, cut_off))
        self._curve = None

    def expected(
        self, generated: NDArray[np.int64], limit: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Estimated total output tokens of streams with `generated` so far, at most `limit`.

        Never below generated + 1: a stream that still runs will produce one more.
        """
        floor = generated + 1.0
        if len(self._recent) < self._evidence:
            return np.asarray(np.maximum(limit, floor), dtype=np.float64)
        if self._curve is None:
            self._curve = _Curve.of(self._recent, self._quantile, self._evidence)
        guess = self._curve.expected(generated)
        return np.asarray(np.maximum(np.minimum(guess, limit), floor), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Curve:
    """The answer for every length so far: it only changes where an output was seen to end.

    seen: distinct lengths, sorted, shape (n,). answer: the quantile of outputs that are longer than
        none, the first, the second, ... of them, shape (n + 1,); infinite where that is not known.
    """

    seen: NDArray[np.int64]
    answer: NDArray[np.float64]

    @classmethod
    def of(cls, observed: deque[tuple[int, bool]], share: float, evidence: int) -> _Curve:
        """Kaplan and Meier's curve, turned into quantiles.

        observed: length, and whether the output was cut off there. share: the quantile.
        evidence: longer outputs that an answer needs.
        """
        length, cut_off = np.array(observed, dtype=np.int64).T
        seen, times = np.unique(length, return_counts=True)
        longer = np.concatenate([[len(length)], len(length) - np.cumsum(times)])
        ends, ended = np.unique(length[cut_off == 0], return_counts=True)
        if not len(ends):
            return cls(seen, np.full(len(longer), np.inf))
        # Share of outputs that are longer than each of the ends; not increasing.
        at_risk = longer[np.searchsorted(seen, ends, side="left")]
        survival = np.cumprod(1.0 - ended / at_risk, dtype=np.float64)
        first = np.concatenate([[0], np.searchsorted(ends, seen, side="right")])
        alive = np.where(first > 0, survival[first - 1], 1.0)
        # Rounding in the products must not push the answer one length up.
        goal = (1.0 - share) * alive + 1e-9
        place = np.maximum(np.searchsorted(-survival, -goal, side="left"), first)
        # Where the curve does not reach so far down the rest was cut off.
        known = (place < len(ends)) & (longer >= evidence)
        answer = np.where(known, ends[np.minimum(place, len(ends) - 1)], np.inf)
        return cls(seen, answer)

    def expected(self, generated: NDArray[np.int64]) -> NDArray[np.float64]:
        """The quantile of outputs longer than `generated`; infinite where it is not known."""
        return self.answer.take(np.searchsorted(self.seen, generated, side="right"))
