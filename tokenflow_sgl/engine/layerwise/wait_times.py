"""How long the device waits for copies of KV, by why."""

from __future__ import annotations

from collections import deque
from typing import Literal

from tokenflow_sgl.engine.layerwise.layer_copies import LayerCopies, Moment, Ticket

Cause = Literal["staging", "stores", "moves"]
"""A layer's KV was not in the staging cells yet; new tokens had not left them for the host; or KV
moved for good before a step."""
CAUSES: tuple[Cause, ...] = ("staging", "stores", "moves")
UNDER_WAY = 4096
"""Waits that are kept until they are over, at most: SGLang submits steps ahead of the device."""


class WaitTimes:
    """Measures on one rank how long steps wait for copies of layers.

    Args:
        copies: Waits, and tells how long it took.

    Attributes:
        seconds: Waited so far, of waits that were known to be over at the last `learn`.
    """

    def __init__(self, copies: LayerCopies) -> None:
        self._copies = copies
        self._waits: deque[tuple[Cause, Moment, Moment]] = deque(maxlen=UNDER_WAY)
        self.seconds: dict[Cause, float] = dict.fromkeys(CAUSES, 0.0)

    def wait(self, ticket: Ticket, cause: Cause) -> tuple[Moment, Moment]:
        """What is computed from now on begins after this copy has ended.

        Returns:
            When the device comes to it, and when it goes on.
        """
        before = self._copies.moment()
        self._copies.wait(ticket)
        after = self._copies.moment()
        self._waits.append((cause, before, after))
        return before, after

    def learn(self) -> None:
        """Add up the waits that are over."""
        while self._waits:
            cause, before, after = self._waits[0]
            took = self._copies.seconds(before, after)
            if took is None:
                break
            self.seconds[cause] += took
            self._waits.popleft()
