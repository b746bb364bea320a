"""How much of each waiting prompt is cached, looked up a few prompts at a time.

The prefix tree of either body tells it for one prompt, at a price that grows with the prompt. What
is cached changes as others are computed and as memory is evicted. So each pass looks at a few of
those that wait, and at none again within a second or so. A pass looks at no more in a long queue
than in a short one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tokenflow_sgl.contract import IntArray, Phase
from tokenflow_sgl.lifecycle.phases import Phases
from tokenflow_sgl.lifecycle.turns import Turns

LOOKS = 16
"""Prompts that one pass looks up at most."""
AGAIN = 32
"""Passes after which a prompt is looked up again. As many as SGLang has between two looks at what
waits (WAITING_PREFIX_REFRESH_INTERVAL), which keep it from being evicted as ours do."""

Match = Callable[[int], tuple[int, int]]
"""Of a slot's prompt: leading tokens on the device, and those on device or host."""


class CachedPrefixes:
    """What is known of the streams that wait, by slot.

    Args:
        phases: Of the streams.
        match: Asks the body's prefix tree.
    """

    def __init__(self, phases: Phases, match: Match) -> None:
        self._phases = phases
        self._match = match
        self._turns = Turns(phases, LOOKS, AGAIN)
        self._device: IntArray = np.zeros(0, dtype=np.int64)
        self._reach: IntArray = np.zeros(0, dtype=np.int64)

    def look(self, order: IntArray) -> None:
        """Look up a few of the streams that wait.

        The earliest is looked up last: where a look counts as a use of what it finds, that is
        evicted last.

        Args:
            order: Slots of all streams, in order of arrival.
        """
        self._grow()
        waiting = order[self._phases.phase.take(order) == Phase.WAITING.value]
        for slot in self._turns.next(waiting)[::-1].tolist():
            self._device[slot], self._reach[slot] = self._match(slot)

    def pass_by(self) -> None:
        """A pass in which no stream waits."""
        self._turns.pass_by()

    def of(self, order: IntArray) -> tuple[IntArray, IntArray]:
        """(Leading tokens on the device, those on device or host), both of the shape of `order`.

        0 where no look has been since the stream came, and where it does not wait.
        """
        self._grow()
        known = self._turns.known(order) & (self._phases.phase.take(order) == Phase.WAITING.value)
        return self._device.take(order) * known, self._reach.take(order) * known

    def _grow(self) -> None:
        more = len(self._phases) - len(self._device)
        if more:
            new = np.zeros(more, dtype=np.int64)
            for name in ("_device", "_reach"):
                setattr(self, name, np.concatenate([getattr(self, name), new]))
