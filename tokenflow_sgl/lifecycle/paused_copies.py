"""Keeps the KV of paused streams from being evicted before what no stream will use.

A prefix tree evicts what was unused longest: a stream that has been paused for ten seconds before
one that has ended since, on the device and on the host. Each pass looks a few paused streams up,
which counts as a use. So as long as there is KV of ended streams, that goes first. (SGLang does the
same for requests that wait, see `cached_prefixes`.)
"""

from __future__ import annotations

from collections.abc import Callable

from tokenflow_sgl.contract import IntArray, Phase
from tokenflow_sgl.lifecycle.phases import Phases
from tokenflow_sgl.lifecycle.turns import Turns

LOOKS = 4
"""Paused streams that one pass looks up at most: each costs about a tenth of a millisecond."""
AGAIN = 32
"""Passes after which a stream is looked up again: a second or so."""


class PausedCopies:
    """Looks paused streams up, a few in each pass.

    Args:
        phases: Of the streams.
        touch: Has the body's prefix tree count the KV of a slot's stream as used now.
    """

    def __init__(self, phases: Phases, touch: Callable[[int], object]) -> None:
        self._phases = phases
        self._touch = touch
        self._turns = Turns(phases, LOOKS, AGAIN)

    def look(self, order: IntArray) -> None:
        """Look up those whose turn it is.

        Args:
            order: Slots of all streams, in order of arrival.
        """
        paused = order[self._phases.phase.take(order) == Phase.PAUSED.value]
        if len(paused):
            for slot in self._turns.next(paused).tolist():
                self._touch(slot)
