"""One clock for all tensor-parallel ranks.

Ranks that decide by their own clocks decide differently, and then hang in a collective.
So the leader's time travels with the requests that it broadcasts anyway, together with
everything else that only the leader can measure; all ranks decide by what arrived.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from sglang.srt.platforms import current_platform

from tokenflow_sgl.engine.agreement import Digests


@cache
def _time_dilation() -> float:
    """Wall-clock seconds per second of the device: not 1 where a device is emulated more slowly."""
    return float(getattr(current_platform, "time_dilation", 1.0))


@cache
def _platform_clock() -> Callable[[], float]:
    """SGLang's clock for time stamps, unless the platform keeps a time of its own."""
    clock: Callable[[], float] = getattr(current_platform, "clock", time.perf_counter)
    return clock


def device_time(stamp: float) -> float:
    """A time of SGLang's clock, or a length of time, on the clock that the policy decides by.

    Readers' rates, intervals and horizons are all meant in the device's seconds, so where an
    emulated device runs slower than the wall clock, the policy's clock does too.
    """
    return stamp / _time_dilation()


def local_time() -> float:
    """Seconds on the clock that the policy decides by, now; SGLang stamps with perf_counter."""
    return device_time(_platform_clock()())


def wall_seconds(seconds: float) -> float:
    """Wall-clock seconds that so many seconds of the device take."""
    return seconds * _time_dilation()


@dataclass(frozen=True, slots=True)
class ClockTick:
    """The leader's measurements at the start of an iteration.

    now: seconds on `local_time` of the leader.
    host_total: capacity of the host KV pool in tokens, 0 without one.
    store_rate, load_rate: tokens per second that copies to the host and back run at; NaN: unknown.
    passes: what the leader has done so far, while ranks are checked (see agreement.py).
    """

    now: float
    host_total: int
    store_rate: float = math.nan
    load_rate: float = math.nan
    passes: tuple[int, Digests] | None = None


class SharedClock:
    """The time that this rank may decide by."""

    def __init__(self) -> None:
        self.now = 0.0
        self.host_total = 0
        self.store_rate = self.load_rate = math.nan

    def receive(self, tick: ClockTick) -> None:
        """Take over the leader's tick; time never runs backwards."""
        self.now = max(self.now, tick.now)
        self.host_total = tick.host_total
        self.store_rate, self.load_rate = tick.store_rate, tick.load_rate

    def at_least(self, moment: float) -> None:
        """Something was looked at that carries a time: it is at least that late now."""
        self.now = max(self.now, moment)
