"""How much of each stream's context other streams hold on the device: what it takes no memory for.

A prompt's beginning is a path of named stretches: two prompts whose paths begin alike begin alike.
What streams share takes memory once, for as long as one of them runs. Either body names the
stretches in its own way, at a price that grows with the prompt. So each pass asks for the paths of
a few streams only, for each stream's once, and for none deep in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray, Phase
from tokenflow_sgl.lifecycle.phases import Phases

LOOKS = 16
"""Streams whose paths one pass asks for at most."""
HEAD = 256
"""Streams that wait, in order of arrival, whose paths are asked for."""
_FIRST = 1024
"""Stretches for which there is room at first."""
_NONE: IntArray = np.zeros(0, dtype=np.int64)

Path = tuple[Sequence[Hashable], Sequence[int]]
"""The stretches that a prompt begins with: their names, and how many tokens each has.

A name says all that comes before it as well."""


class SharedPrefixes:
    """What is known of the streams that are here, by slot.

    Args:
        phases: Of the streams.
        path: Of the prompt in a slot.
    """

    def __init__(self, phases: Phases, path: Callable[[int], Path]) -> None:
        self._phases = phases
        self._path = path
        self._paths: dict[int, IntArray] = {}  # by slot: places of its stretches
        self._number: IntArray = np.zeros(0, dtype=np.int64)  # whose path that is; 0: not asked for
        self._place: dict[Hashable, int] = {}  # of a stretch in the columns that follow
        self._name: list[Hashable] = []
        self._tokens: IntArray = np.zeros(_FIRST, dtype=np.int64)
        self._streams: IntArray = np.zeros(_FIRST, dtype=np.int64)  # that have it in their paths
        self._unused: list[int] = []
        self._version = -1
        self._holds: BoolArray = np.zeros(0, dtype=np.bool_)
        self._complete = False
        self._found: IntArray | None = None

    def of(self, order: IntArray, begun: BoolArray) -> IntArray | None:
        """Leading tokens of each stream that others hold on the device.

        Args:
            order: Slots of all streams, in order of arrival, shape (n,).
            begun: Which of them have begun to generate, shape (n,).

        Returns:
            Tokens, shape (n,): 0 for those that were not looked at yet. None: none shares any.
        """
        phase = self._phases.phase.take(order)
        holds = begun & ((phase == Phase.RUNNING.value) | (phase == Phase.DRAINING.value))
        same = self._version == self._phases.version
        if same and self._complete and np.array_equal(self._holds, holds):
            return self._found
        if not same:
            self._forget_others()
        if not (same and self._complete):
            first = order[holds]
            waits = phase == Phase.WAITING.value
            self._look(np.concatenate([first, order[~waits], order[waits][:HEAD]]))
        self._version, self._holds = self._phases.version, holds
        self._found = self._count(order, holds)
        return self._found

    def _forget_others(self) -> None:
        """Streams that have left."""
        more = len(self._phases) - len(self._number)
        if more:
            self._number = np.concatenate([self._number, np.zeros(more, dtype=np.int64)])
        here = (self._phases.phase >= 0) & (self._number == self._phases.number)
        for slot in np.nonzero((self._number > 0) & ~here)[0].tolist():
            self._forget(slot)

    def _look(self, slots: IntArray) -> None:
        unknown = list(dict.fromkeys(slots[self._number.take(slots) == 0].tolist()))
        for slot in unknown[:LOOKS]:
            self._learn(slot)
        self._complete = len(unknown) <= LOOKS

    def _learn(self, slot: int) -> None:
        places = np.array([self._at(*each) for each in zip(*self._path(slot), strict=True)], int)
        self._streams[places] += 1
        self._paths[slot], self._number[slot] = places, self._phases.number[slot]

    def _at(self, name: Hashable, tokens: int) -> int:
        place = self._place.get(name)
        if place is not None:
            return place
        if self._unused:
            place = self._unused.pop()
            self._name[place] = name
        else:
            place = len(self._name)
            self._name.append(name)
            if place == len(self._tokens):
                self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
                self._streams = np.concatenate([self._streams, np.zeros_like(self._streams)])
        self._place[name], self._tokens[place] = place, tokens
        return place

    def _forget(self, slot: int) -> None:
        places = self._paths.pop(slot)
        self._number[slot] = 0
        self._streams[places] -= 1
        for place in places[self._streams[places] == 0].tolist():
            del self._place[self._name[place]]
            self._unused.append(place)

    def _count(self, order: IntArray, holds: BoolArray) -> IntArray | None:
        paths = [self._paths.get(slot, _NONE) for slot in order.tolist()]
        first = np.array([path.item(0) if len(path) else -1 for path in paths], dtype=np.int64)
        # Most often every prompt begins with something of its own.
        some = np.nonzero((first >= 0) & (self._streams[first] > 1))[0]
        if not holds[some].any():
            return None
        chosen = [paths[index] for index in some.tolist()]
        places = np.concatenate(chosen)
        lengths = np.array([len(path) for path in chosen])
        ends = lengths.cumsum()
        held = holds[some].repeat(lengths)
        holders = np.bincount(places[held], minlength=len(self._name))[places] - held
        # The first stretch of each that no other one holds, or its end.
        stops = np.where(holders > 0, len(places), np.arange(len(places)))
        stop = np.minimum(np.minimum.reduceat(stops, ends - lengths), ends)
        tokens = np.concatenate([[0], self._tokens[places].cumsum()])
        shared = np.zeros(len(order), dtype=np.int64)
        shared[some] = tokens[stop] - tokens[ends - lengths]
        return shared if shared.any() else None
