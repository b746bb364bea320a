"""Which of many streams a pass looks at, where a look costs something: they take turns.

First those that were never looked at, then those longest ago, and none again within so many passes.
By passes and slots, not by a clock: all ranks look at the same streams in the same pass.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray
from tokenflow_sgl.lifecycle.phases import Phases


class Turns:
    """Which streams were looked at in which pass, by slot.

    Args:
        phases: Of the streams.
        most: Streams that one pass looks at, at most.
        again: Passes after which a stream is looked at again.
    """

    def __init__(self, phases: Phases, most: int, again: int) -> None:
        self._phases = phases
        self._most, self._again = most, again
        self._looked: IntArray = np.zeros(0, dtype=np.int64)
        self._number: IntArray = np.zeros(0, dtype=np.int64)
        self._passes = 0

    def next(self, slots: IntArray) -> IntArray:
        """Which of `slots` this pass looks at, in their order."""
        self._grow()
        self._passes += 1
        looked = np.where(self.known(slots), self._looked.take(slots), -self._again)
        due = np.nonzero(looked <= self._passes - self._again)[0]
        if len(due) > self._most:
            due = np.sort(due[np.argsort(looked[due], kind="stable")[: self._most]])
        chosen = slots[due]
        self._looked[chosen] = self._passes
        self._number[chosen] = self._phases.number.take(chosen)
        return chosen

    def pass_by(self) -> None:
        """A pass in which there is nothing to look at."""
        self._passes += 1

    def known(self, slots: IntArray) -> BoolArray:
        """Which of them were looked at since their stream came."""
        self._grow()
        return np.equal(self._number.take(slots), self._phases.number.take(slots))

    def _grow(self) -> None:
        more = len(self._phases) - len(self._looked)
        if more:
            new = np.zeros(more, dtype=np.int64)
            self._looked = np.concatenate([self._looked, new])
            self._number = np.concatenate([self._number, new])
