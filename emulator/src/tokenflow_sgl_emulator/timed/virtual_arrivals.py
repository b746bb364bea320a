"""Requests that wait for their moment on the virtual clock.

On a virtual clock a client cannot send a request at its moment. So it sends all requests of a trace
at once, and each carries under `ARRIVAL_KEY` of its `custom_params` when it arrives:

    {"emulated_arrival": {"at_s": 0.25, "index": 3, "of": 60}}

The trace begins when all of them (`of`) are there: how fast they came does not matter. `at_s`
counts from then, `index` orders requests of one moment. Every token of an answer comes with its own
moment on the same count, under `STAMP_KEY` of SGLang's `meta_info`. One trace at a time; requests
that carry nothing arrive when they come.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl_emulator.timed.clock import VirtualClock

ARRIVAL_KEY = "emulated_arrival"
STAMP_KEY = "emulated_s"


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """When a request arrives.

    Attributes:
        at_s: Virtual seconds after the trace's beginning, at least 0.
        index: Its place among those that arrive at the same moment.
        of: Number of requests of the trace.
    """

    at_s: float
    index: int
    of: int


class VirtualArrivals:
    """The requests of a trace that SGLang must not see yet.

    Args:
        clock: The device's.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._zero = 0.0
        self._held: list[tuple[Arrival, Any]] = []  # once it runs: the next one last
        self._runs = False

    def receive(self, messages: Iterable[Any]) -> list[Any]:
        """What SGLang gets of these messages: none that is held, and those that are due now."""
        passed: list[Any] = []
        for message in messages:
            arrival = arrival_of(message)
            if arrival is not None:
                self._held.append((arrival, message))
                continue
            if hasattr(message, "abort_all"):
                passed += self._aborted(message)  # SGLang can only abort what it knows
            passed.append(message)
        if self._held and not self._runs and len(self._held) >= self._held[0][0].of:
            self._begin()
        while self._runs and self._held and self._moment() <= self._clock.now():
            passed.append(self._held.pop()[1])
        self._runs = self._runs and bool(self._held)
        return passed

    def jump(self) -> bool:
        """Move the clock to the next arrival; return whether there is one."""
        if self._runs:
            self._clock.wait_until(self._moment())
        return self._runs

    def idle_pass(self) -> None:
        """Let a pass of SGLang's loop take its time, but none beyond the next arrival."""
        self._clock.idle_pass(self._moment() if self._runs else math.inf)

    def elapsed(self) -> float:
        """Virtual seconds since the trace's beginning."""
        return self._clock.now() - self._zero

    def _begin(self) -> None:
        self._zero, self._runs = self._clock.now(), True
        self._held.sort(key=lambda held: held[0], reverse=True)

    def _moment(self) -> float:
        return self._zero + self._held[-1][0].at_s

    def _aborted(self, abort: Any) -> list[Any]:
        kept: list[tuple[Arrival, Any]] = []
        named: list[Any] = []
        for arrival, request in self._held:
            if abort.abort_all or request.rid.startswith(abort.rid):
                named.append(request)
            else:
                kept.append((arrival, request))
        self._held, self._runs = kept, self._runs and bool(kept)
        return named


def arrival_of(message: Any) -> Arrival | None:
    """What a message from the front end says of its arrival; None: nothing that can be used."""
    custom = getattr(getattr(message, "sampling_params", None), "custom_params", None)
    fields = custom.get(ARRIVAL_KEY) if isinstance(custom, dict) else None
    if not isinstance(fields, dict):
        return None
    try:
        return Arrival(float(fields["at_s"]), int(fields["index"]), int(fields["of"]))
    except (KeyError, TypeError, ValueError):
        return None
