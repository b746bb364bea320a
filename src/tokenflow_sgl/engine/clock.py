"""One clock for all tensor-parallel ranks.

Ranks that decide by their own clocks decide differently, and then hang in a collective.
So the leader's time travels with the requests that it broadcasts anyway, together with
everything else that only the leader can measure; all ranks decide by what arrived.
"""

from __future__ import annotations

import time
from dataclasses import dataclass


def local_time() -> float:
    """Seconds on SGLang's own clock, the one that its request time stamps are on."""
    return time.perf_counter()


@dataclass(frozen=True, slots=True)
class ClockTick:
    """The leader's measurements at the start of an iteration.

    now: seconds on `local_time` of the leader.
    host_total: capacity of the host KV pool in tokens, 0 without one.
    """

    now: float
    host_total: int


class SharedClock:
    """The time that this rank may decide by."""

    def __init__(self) -> None:
        self.now = 0.0
        self.host_total = 0

    def receive(self, tick: ClockTick) -> None:
        """Take over the leader's tick; time never runs backwards."""
        self.now = max(self.now, tick.now)
        self.host_total = tick.host_total

    def at_least(self, moment: float) -> None:
        """A request carries its arrival: it is at least that late now."""
        self.now = max(self.now, moment)
