"""Where each stream stands: one phase per stream, the same for both bodies.

    arrive -> WAITING -> RUNNING -> (ended: leave)
    RUNNING -> DRAINING -> PAUSED    preempted; its last result is processed first
    RUNNING -> PAUSED                retracted by the engine itself, after its first token
    RUNNING -> WAITING               retracted by the engine itself, before its first token
    PAUSED  -> LOADING -> PAUSED     its KV is prefetched; or that is given up half-way
    PAUSED  -> RUNNING               resumed

A stream can leave from every phase: it is aborted, or its client has gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, Phase

NOT_HERE = -1
"""Phase of a slot without a stream."""
LAST_TOKENS = 2
"""Tokens before its limit from which on a stream is not preempted: it frees its memory sooner by
running to its end."""
_GENERATES = np.isin([*Phase, NOT_HERE], (Phase.RUNNING, Phase.DRAINING))
"""By phase, of which NOT_HERE is the last: whether the next result may have a token."""


@dataclass(frozen=True, slots=True)
class LoadedPart:
    """What there is of a stream whose KV is loaded in chunks.

    Attributes:
        loaded: Tokens that were copied, or are.
        to_load: Tokens for which no copy has begun.
    """

    loaded: int
    to_load: int


class Phases:
    """The phase of each stream and what goes with it, in columns by slot.

    Attributes:
        phase: A `Phase`, or NOT_HERE.
        since: When the stream entered it.
        admitted: Member of the policy's working set.
        ready: Paused, and there is no load to wait for: it has landed, or there is none to start.
        number: Of the stream in order of arrival, from 1; it tells streams of one slot apart.
        parts: Streams that are LOADING and wait for memory for the rest, in the order in which they
            began.
        version: Changes whenever a stream arrives, leaves, or enters another phase, when it is said
            anew since when it is in its phase, and when its reader changes.
    """

    def __init__(self, capacity: int) -> None:
        self.phase: NDArray[np.int8] = np.full(capacity, NOT_HERE, dtype=np.int8)
        self.since: FloatArray = np.zeros(capacity)
        self.admitted: BoolArray = np.zeros(capacity, dtype=np.bool_)
        self.ready: BoolArray = np.zeros(capacity, dtype=np.bool_)
        self.number: IntArray = np.zeros(capacity, dtype=np.int64)
        self.parts: dict[int, LoadedPart] = {}
        self.version = 0
        self._arrived = 0
        self._stopped: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self.phase)

    def grow(self, capacity: int) -> None:
        """Make place for so many slots."""
        more = capacity - len(self)
        self.phase = np.concatenate([self.phase, np.full(more, NOT_HERE, dtype=np.int8)])
        self.since = np.concatenate([self.since, np.zeros(more)])
        self.admitted = np.concatenate([self.admitted, np.zeros(more, dtype=np.bool_)])
        self.ready = np.concatenate([self.ready, np.zeros(more, dtype=np.bool_)])
        self.number = np.concatenate([self.number, np.zeros(more, dtype=np.int64)])

    def arrive(self, slot: int, now: float) -> None:
        """A stream comes into a free slot."""
        self.admitted[slot] = False
        self._arrived += 1
        self.number[slot] = self._arrived
        self.move(slot, Phase.WAITING, now)

    def move(self, slot: int, phase: Phase, now: float) -> None:
        """The stream enters a phase."""
        if _GENERATES[self.phase[slot]] and not _GENERATES[phase]:
            self._stopped[slot] = None
        self.ready[slot] = self.phase[slot] == Phase.LOADING.value and phase == Phase.PAUSED
        self.parts.pop(slot, None)
        self.phase[slot] = phase.value
        self.since[slot] = now
        self.version += 1

    def redate(self, slot: int, now: float) -> None:
        """The stream entered its phase just now, not when it was said to."""
        self.since[slot] = now
        self.version += 1

    def changed(self, slot: int) -> None:
        """Something else about the stream has changed: what was settled of it is looked at again.

        Also what it has delivered, though it generates nothing.
        """
        self._stopped[slot] = None
        self.version += 1

    def leave(self, slot: int) -> None:
        """Free the slot of a stream that has ended."""
        self.phase[slot] = NOT_HERE
        self.parts.pop(slot, None)
        self._stopped.pop(slot, None)
        self.version += 1

    def load(self, slot: int, tokens: int, to_load: int, now: float) -> None:
        """Note that `tokens` more of a stream's KV are copied to the device; `to_load` are left."""
        before = self.parts.pop(slot, LoadedPart(0, 0)).loaded
        if self.phase[slot] != Phase.LOADING.value:
            self.move(slot, Phase.LOADING, now)
        if to_load:
            self.parts[slot] = LoadedPart(before + tokens, to_load)

    def landed(self, slot: int, now: float) -> None:
        """What was being copied of a stream is there: it is ready, or waits for the rest."""
        if slot not in self.parts:
            self.move(slot, Phase.PAUSED, now)

    def give_up(self, slot: int, now: float) -> None:
        """A stream that was loaded in part is paused again."""
        self.move(slot, Phase.PAUSED, now)
        self.ready[slot] = False

    @property
    def partly_loaded(self) -> int:
        """Tokens on the device of streams that wait for memory for the rest: can be given up."""
        return sum(part.loaded for part in self.parts.values())

    def to_load(self, slots: IntArray) -> IntArray | None:
        """Tokens for which no copy has begun, of streams that are loaded in part; else 0.

        None: no stream is loaded in part.
        """
        if not self.parts:
            return None
        found = np.zeros(len(slots), dtype=np.int64)
        for slot, part in self.parts.items():
            found[slots == slot] = part.to_load
        return found

    def admit(self, slots: Iterable[int]) -> None:
        """Make these streams members of the working set."""
        for slot in slots:
            self.admitted[slot] = True

    def is_in(self, slot: int, *phases: Phase) -> bool:
        """Whether a slot holds a stream in one of these phases; False for slots that never were."""
        return 0 <= slot < len(self.phase) and self.phase.item(slot) in phases

    def those_in(self, slots: Sequence[int], *phases: Phase) -> list[int]:
        """Which of these slots hold a stream in one of these phases, in their order."""
        phase, size = self.phase, len(self)
        # Item by item: there are a few dozen slots at most.
        return [slot for slot in slots if 0 <= slot < size and phase.item(slot) in phases]

    def take_stopped(self) -> list[int]:
        """Slots that have stopped generating since the last call, perhaps with a token more."""
        stopped = [slot for slot in self._stopped if not _GENERATES[self.phase[slot]]]
        self._stopped.clear()
        return stopped

    def generates(self, slots: IntArray) -> BoolArray:
        """Which of these streams may have a token in the next result."""
        return _GENERATES.take(self.phase.take(slots))


def worth_preempting(generated: IntArray, limit: IntArray) -> BoolArray:
    """Which running streams are worth a preemption: they have a token, and more than a few to come.

    Args:
        generated: Output tokens so far, shape (n,).
        limit: Output tokens at most, shape (n,).
    """
    return np.asarray((generated > 0) & (limit - generated > LAST_TOKENS))
