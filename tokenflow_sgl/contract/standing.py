"""Where streams stand: which are in which phase. Every part of a policy asks for it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.contract.lengths import FloatArray, IntArray

BoolArray = NDArray[np.bool_]
PhaseArray = NDArray[np.int8]

_Array = TypeVar("_Array", IntArray, FloatArray, BoolArray)


def sealed(array: _Array) -> _Array:
    """Make an array read-only, since it is shared, and return it."""
    array.setflags(write=False)
    return array


class Phase(enum.IntEnum):
    """Where a stream stands between its arrival and its last token."""

    WAITING = 0
    """Arrived, no token produced yet, holds no KV."""
    RUNNING = 1
    """Holds its KV on the device: being prefilled or decoded."""
    DRAINING = 2
    """Preempted, but a step that computes its next token is still in flight; KV still held."""
    PAUSED = 3
    """Started and not running. Its KV is in the prefix tree, on the host, or must be recomputed."""
    LOADING = 4
    """As paused, and its KV is being copied to the device; what it has copied is kept there."""


@dataclass(frozen=True, eq=False)
class Standing:
    """What is true of n streams, in arrival order, until one arrives, leaves or changes its phase.

    A body hands the same object to all states between two such changes, which are most of them: a
    decode step changes no phase. So what is found here is found once for all of these states.

    Attributes:
        slot: Identity of the stream, stable over its life (the body's index).
        phase: A `Phase` value.
        since: When it entered its phase.
    """

    slot: IntArray
    phase: PhaseArray
    since: FloatArray

    def __len__(self) -> int:
        return len(self.slot)

    def among(self, index: IntArray) -> Standing:
        """Only the streams at `index`, in its order."""
        return Standing(self.slot[index], self.phase[index], self.since[index])

    @cached_property
    def waiting(self) -> BoolArray:
        """Which streams are `Phase.WAITING`, shape (n,)."""
        return self._are(Phase.WAITING)

    @cached_property
    def running(self) -> BoolArray:
        """Which streams are `Phase.RUNNING`, shape (n,)."""
        return self._are(Phase.RUNNING)

    @cached_property
    def draining(self) -> BoolArray:
        """Which streams are `Phase.DRAINING`, shape (n,)."""
        return self._are(Phase.DRAINING)

    @cached_property
    def paused(self) -> BoolArray:
        """Which streams are `Phase.PAUSED`, shape (n,)."""
        return self._are(Phase.PAUSED)

    @cached_property
    def loading(self) -> BoolArray:
        """Which streams are `Phase.LOADING`, shape (n,)."""
        return self._are(Phase.LOADING)

    @cached_property
    def paused_or_loading(self) -> BoolArray:
        """Which streams have started and are in no batch, shape (n,)."""
        return sealed(self.paused | self.loading)

    @cached_property
    def waiting_index(self) -> IntArray:
        """Indices of the waiting streams, shape (w,)."""
        return sealed(self.waiting.nonzero()[0])

    @cached_property
    def running_index(self) -> IntArray:
        """Indices of the running streams, shape (r,)."""
        return sealed(self.running.nonzero()[0])

    @cached_property
    def draining_index(self) -> IntArray:
        """Indices of the draining streams, shape (d,)."""
        return sealed(self.draining.nonzero()[0])

    @cached_property
    def loading_index(self) -> IntArray:
        """Indices of the loading streams, shape (l,)."""
        return sealed(self.loading.nonzero()[0])

    @cached_property
    def paused_index(self) -> IntArray:
        """Indices of the paused streams, shape (p,)."""
        return sealed(self.paused.nonzero()[0])

    @cached_property
    def some_in_no_batch(self) -> bool:
        """Whether a stream has started and is in no batch, or about to leave its batch."""
        return bool(self.draining.any() or self.paused_or_loading.any())

    @cached_property
    def waits_since(self) -> tuple[float, float]:
        """When the first and the last of those that wait began to; inf, -inf: none does."""
        since = self.since.take(self.waiting_index)
        return float(since.min(initial=np.inf)), float(since.max(initial=-np.inf))

    def find(self, slots: Sequence[int] | IntArray) -> IntArray:
        """Index of each of these slots in the arrays, -1 where it is not here; (len(slots),)."""
        lowest, index = self._index_by_slot
        wanted = np.asarray(slots, dtype=np.int64) - lowest
        wanted[(wanted < 0) | (wanted >= len(index))] = -1
        return index[wanted]

    @cached_property
    def _index_by_slot(self) -> tuple[int, IntArray]:
        """The lowest slot, and the index of each slot from there on; -1: none, as the last one."""
        if not len(self):
            return 0, np.full(1, -1, dtype=np.int64)
        lowest, highest = int(self.slot.min()), int(self.slot.max())
        index = np.full(highest - lowest + 2, -1, dtype=np.int64)
        index[self.slot - lowest] = np.arange(len(self))
        return lowest, index

    def _are(self, phase: Phase) -> BoolArray:
        # numpy takes five times as long to compare with a member of an enumeration.
        return sealed(self.phase == phase.value)
