"""How much of each stream's context other streams hold on the device: what it takes no memory for.

A prompt's beginning is a path of named stretches: two prompts whose paths begin alike begin alike.
What streams share takes memory once, for as long as one of them runs. Either body names the
stretches in its own way, at a price that grows with the prompt. So each pass asks for the paths of
a few streams only, for each stream's once, and for none deep in the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from tokenflow_sgl.contract import Beginnings, BoolArray, IntArray, Phase
from tokenflow_sgl.contract.standing import sealed
from tokenflow_sgl.lifecycle.phases import Phases

LOOKS = 8
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
        self._first: IntArray = np.zeros(0, dtype=np.int64)  # place of its first stretch; -1: none
        self._place: dict[Hashable, int] = {}  # of a stretch in the columns that follow
        self._name: list[Hashable] = []
        self._tokens: IntArray = np.zeros(_FIRST, dtype=np.int64)
        self._streams: IntArray = np.zeros(_FIRST, dtype=np.int64)  # that have it in their paths
        self._unused: list[int] = []
        self._version = -1
        self._holds: BoolArray = np.zeros(0, dtype=np.bool_)
        self._complete = False
        self._found: IntArray | None = None
        self._counted: IntArray = _NONE  # the order in which the beginnings are
        self._alike: Beginnings | None = None  # None: to be found anew

    @property
    def beginnings(self) -> Beginnings | None:
        """Of the streams last asked about, as far as they were looked at; None: none are alike."""
        return self._alike if self._alike is not None and len(self._alike.index) else None

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
        """Forget the prefixes of streams that have left."""
        more = len(self._phases) - len(self._number)
        if more:
            self._number = np.concatenate([self._number, np.zeros(more, dtype=np.int64)])
            self._first = np.concatenate([self._first, np.full(more, -1, dtype=np.int64)])
        phases = self._phases
        # Not all slots: a simulation of a million requests has as many.
        known = np.array(sorted(self._paths), dtype=np.int64)
        here = (phases.phase[known] >= 0) & (self._number[known] == phases.number[known])
        for slot in known[~here].tolist():
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
        self._first[slot] = places[0] if len(places) else -1
        self._alike = None

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
        self._number[slot], self._first[slot] = 0, -1
        self._streams[places] -= 1
        self._alike = None
        for place in places[self._streams[places] == 0].tolist():
            del self._place[self._name[place]]
            self._unused.append(place)

    def _count(self, order: IntArray, holds: BoolArray) -> IntArray | None:
        if self._alike is None or not np.array_equal(self._counted, order):
            self._alike, self._counted = self._find_alike(order), order
        alike = self._alike
        held_by = holds.take(alike.index)
        if not held_by.any():
            return None
        # What others hold: more than the stream itself does.
        held = alike.holders(held_by).take(alike.places) > held_by.repeat(alike.lengths)
        shared = np.zeros(len(order), dtype=np.int64)
        shared[alike.index] = alike.leading(held)
        return sealed(shared) if shared.any() else None  # several states share it

    def _find_alike(self, order: IntArray) -> Beginnings:
        first = self._first.take(order)
        # Most often every prompt begins with something of its own.
        index = np.nonzero((first >= 0) & (self._streams.take(first) > 1))[0]
        paths = [self._paths[slot] for slot in order.take(index).tolist()]
        places = np.concatenate(paths) if paths else _NONE
        lengths = np.array([len(path) for path in paths], dtype=np.int64)
        tokens = self._tokens.take(places)
        return Beginnings(*map(sealed, (index, lengths, places, tokens)))
