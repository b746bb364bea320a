"""What streams begin with in common, stretch by stretch, and who holds it while a plan is made.

A prompt's beginning is a path of stretches. A stretch stands for all that comes before it as well,
so that the paths are a tree: who has a stretch has the same ones before it. KV of a stretch takes
memory once, for as long as one stream that has it is on the device. So what a stream takes when it
starts, and what it frees when it leaves, changes with each other one that does.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenflow_sgl.contract.lengths import FloatArray, IntArray
from tokenflow_sgl.contract.standing import BoolArray, sealed


@dataclass(frozen=True, eq=False)
class Beginnings:
    """The streams that begin like another one, and their paths, one behind the other.

    Attributes:
        index: Of these streams in the state, ascending, shape (a,).
        lengths: Stretches in the path of each, at least 1, shape (a,).
        places: Of the stretches of all paths: two that are alike have the same one, shape (p,).
        tokens: Of each of them, shape (p,).
    """

    index: IntArray
    lengths: IntArray
    places: IntArray
    tokens: IntArray

    @cached_property
    def starts(self) -> IntArray:
        """Where each path begins in `places`, and where the last one ends, shape (a + 1,)."""
        return sealed(np.concatenate([[0], self.lengths.cumsum()]))

    @cached_property
    def count(self) -> int:
        """More than any of the places."""
        return int(self.places.max(initial=-1)) + 1

    @cached_property
    def before(self) -> IntArray:
        """Tokens of all stretches before each place of `places`, and of all, shape (p + 1,)."""
        return sealed(np.concatenate([[0], self.tokens.cumsum()]))

    @cached_property
    def whole(self) -> IntArray:
        """Tokens of each path, shape (a,)."""
        return sealed(np.diff(self.before.take(self.starts)))

    def among(self, chosen: IntArray) -> Beginnings:
        """Only of the streams at `chosen` in the state, which are numbered anew, in its order."""
        row = np.full(int(max(self.index.max(initial=-1), chosen.max(initial=-1))) + 1, -1)
        row[self.index] = np.arange(len(self.index))
        rows = row[chosen]
        found = rows >= 0
        rows = rows[found]
        lengths = self.lengths[rows]
        ends = lengths.cumsum()
        at = np.arange(int(lengths.sum())) + (self.starts[rows] - ends + lengths).repeat(lengths)
        return Beginnings(np.nonzero(found)[0], lengths, self.places[at], self.tokens[at])

    def leading(self, held: BoolArray) -> IntArray:
        """Tokens of each path before the first stretch that is not held, shape (a,).

        held: Of each stretch of each path, shape (p,).
        """
        # In a tree nothing behind such a stretch is held, but for a path that was cut off.
        first = np.where(held, len(self.places), np.arange(len(self.places)))
        stop = np.minimum(np.minimum.reduceat(first, self.starts[:-1]), self.starts[1:])
        return np.asarray(self.before.take(stop) - self.before.take(self.starts[:-1]))

    def holders(self, holds: BoolArray) -> IntArray:
        """How many streams hold the stretch at each place, shape (count,).

        holds: Which of the streams of `index` hold theirs, shape (a,).
        """
        held = self.places[holds.repeat(self.lengths)]
        return np.bincount(held, minlength=self.count).astype(np.int64)


class HeldBeginnings:
    """Who holds which beginning while a plan is made.

    Args:
        beginnings: Of the streams of the state.
        length: Context of each stream of the state in tokens, shape (n,).
        holds: Which of them are on the device, shape (n,).
    """

    def __init__(self, beginnings: Beginnings, length: IntArray, holds: BoolArray) -> None:
        self._beginnings, self._length = beginnings, length
        self._row = dict(zip(beginnings.index.tolist(), range(len(beginnings.index)), strict=True))
        self._holds = holds.take(beginnings.index)
        self._holders = beginnings.holders(self._holds)

    def take(self, index: int) -> int:
        """It starts; returns the tokens that it takes memory for, beside what others hold."""
        return self._changed(index, +1)

    def give(self, index: int) -> int:
        """It leaves; returns the tokens whose memory is free then."""
        return self._changed(index, -1)

    def _changed(self, index: int, by: int) -> int:
        length = int(self._length.item(index))
        row = self._row.get(index)
        if row is None:
            return length
        own = slice(*self._beginnings.starts[row : row + 2].tolist())
        places, tokens = self._beginnings.places[own], self._beginnings.tokens[own]
        others = self._holders[places] - (by < 0)
        self._holders[places] += by
        self._holds[row] = by > 0
        return length - int(tokens[others > 0].sum())

    def together(self, may: BoolArray, wanted: int) -> list[int]:
        """Streams that leave together with what they begin with; none: that frees too little.

        Of those that free at least so much, the fewest.

        Args:
            may: Which of the streams of the state may leave, shape (n,).
            wanted: Tokens whose memory they have to free.
        """
        beginnings = self._beginnings
        leaving = beginnings.holders(self._holds & may.take(beginnings.index))
        good = (self._holders > 0) & (leaving == self._holders) & (self._freed() >= wanted)
        if not good.any():
            return []
        found = good.nonzero()[0]
        best = found[self._holders[found].argmin()]
        theirs = self._holds.repeat(beginnings.lengths) & (beginnings.places == best)
        chosen: list[int] = beginnings.index.repeat(beginnings.lengths)[theirs].tolist()
        return chosen

    def _freed(self) -> FloatArray:
        """Tokens that are free once all have left that hold a stretch: of each place, (count,)."""
        beginnings, lengths = self._beginnings, self._beginnings.lengths
        here = self._holds.repeat(lengths)
        places, count = beginnings.places[here], beginnings.count
        tokens = beginnings.tokens[here]
        ends = beginnings.lengths[self._holds].cumsum()
        alone = (self._length.take(beginnings.index) - beginnings.whole).repeat(lengths)[here]
        # Of those that hold a stretch, the first one counts it. It is behind all that are before it
        # in that path, and in a tree those are the same in every path.
        once = np.zeros(len(places), dtype=np.int64)
        first = np.unique(places, return_index=True)[1]
        once[first] = tokens[first]
        before = np.concatenate([[0], once.cumsum()])
        behind = before.take(ends.repeat(lengths[self._holds])) - before[:-1]
        return np.asarray(np.bincount(places, alone + behind, minlength=count))
