"""How many tokens a decode step gives a stream where drafts are verified in it.

A chain of drafts: each one is accepted with the same chance as long as all before it were, and the
token behind the last accepted one comes for nothing. The chance is what gives the mean that is
asked for. What is accepted depends on the stream and on how long its answer is by then, and on
nothing else: two schedulers that serve one trace have the same luck.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray

_STREAM, _TOKEN = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD1B54A32D192ED03)
"""Odd numbers that set streams, and the places in an answer, far apart."""
_SHIFTS = (
    (np.uint64(30), np.uint64(0xBF58476D1CE4E5B9)),
    (np.uint64(27), np.uint64(0x94D049BB133111EB)),
)
"""Of the hash splitmix64."""


class Acceptance:
    """How many tokens a decode step gives each stream, with speculation.

    Args:
        mean: Of a stream, from 1 to `most`.
        most: Drafts and the token behind them.

    Attributes:
        most: The same.
    """

    def __init__(self, mean: float, most: int) -> None:
        self.most = most
        # Below the n-th of these, n drafts at least are accepted.
        drafts: FloatArray = np.arange(1, most, dtype=np.float64)
        self._chance: FloatArray = np.power(_chance(mean, most), drafts)

    def tokens(self, stream: IntArray, generated: IntArray) -> IntArray:
        """What the next step gives each stream whose answer is so long, shape (n,)."""
        mixed = stream.astype(np.uint64) * _STREAM + generated.astype(np.uint64) * _TOKEN
        for shift, factor in _SHIFTS:
            mixed = (mixed ^ (mixed >> shift)) * factor
        luck = (mixed ^ (mixed >> np.uint64(31))) / np.float64(2**64)
        return 1 + np.asarray((luck[:, None] < self._chance).sum(axis=1), dtype=np.int64)

    def steps(self, stream: IntArray, generated: IntArray, answer: IntArray, most: int) -> IntArray:
        """What the next steps give each stream, until the first one ends; shape (steps, n).

        Args:
            stream: Of each, shape (n,).
            generated: Tokens of its answer so far, shape (n,).
            answer: Tokens of its whole answer, above those; nothing comes behind them.
            most: Steps at most.
        """
        made: list[IntArray] = []
        while len(made) < most:
            made.append(np.minimum(self.tokens(stream, generated), answer - generated))
            generated = generated + made[-1]
            if (generated >= answer).any():
                break
        return np.array(made)


def _chance(mean: float, most: int) -> float:
    """The chance of a draft with which a chain gives `mean` tokens: 1 + p + p^2 + ..."""
    low, high = 0.0, 1.0
    powers = np.arange(most)
    for _ in range(60):
        middle = (low + high) / 2.0
        if float((middle**powers).sum()) < mean:
            low = middle
        else:
            high = middle
    return high
