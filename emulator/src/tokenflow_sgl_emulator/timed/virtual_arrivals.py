"""Requests that wait for their moment on the virtual clock.

On a virtual clock a client cannot send a request at its moment. So it sends all requests of a trace
at once, and each carries under `ARRIVAL_KEY` of its `custom_params` when it arrives:

    {"emulated_arrival": {"at_s": 0.25, "index": 3, "of": 60}}

The trace begins when all of them (`of`) are there: how fast they came does not matter. `at_s`
counts from then, `index` orders requests of one moment. Every token of an answer comes with its own
moment on the same count, under `STAMP_KEY` of SGLang's `meta_info`. One trace at a time: the next
one begins when the server has nothing left to do. Requests that carry nothing arrive when they
come.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl_emulator.timed.clock import VirtualClock

ARRIVAL_KEY = "emulated_arrival"
STAMP_KEY = "emulated_s"
LATEST_S = 1e9
"""Seconds after its beginning at which a trace may still go on: some thirty years."""


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """When a request arrives.

    Attributes:
        at_s: Virtual seconds after the trace's beginning, from 0 to `LATEST_S`.
        index: Its place among those that arrive at the same moment, from 0 and below `of`.
        of: Number of requests of the trace.
    """

    at_s: float
    index: int
    of: int


class VirtualArrivals:
    """The requests of traces that SGLang must not see yet.

    Args:
        clock: The device's.
    """

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._zero = 0.0
        self._coming: dict[int, list[tuple[Arrival, Any]]] = {}  # by the size of their trace
        self._held: list[tuple[Arrival, Any]] = []  # of the trace that runs: the next one last
        self._served = False  # whether requests of the last trace may still be under way

    def receive(self, messages: Iterable[Any]) -> list[Any]:
        """What SGLang gets of these messages: none that is held, and those that are due now."""
        passed: list[Any] = []
        for message in (member for each in messages for member in _members(each)):
            arrival = arrival_of(message)
            if arrival is not None:
                self._coming.setdefault(arrival.of, []).append((arrival, message))
                continue
            if hasattr(message, "abort_all"):
                passed += self._aborted(message)  # SGLang can only abort what it knows
            passed.append(message)
        if not self._served:
            self._begin()
        while self._held and self._moment() <= self._clock.now():
            passed.append(self._held.pop()[1])
        return passed

    def jump(self) -> bool:
        """Move the clock to the next arrival; return whether there is one."""
        if self._held:
            self._clock.wait_until(self._moment())
        return bool(self._held)

    def next_trace(self) -> bool:
        """The server has nothing left to do: begin what came meanwhile; return whether it did."""
        self._served = False
        self._begin()
        return self._served

    def idle_pass(self) -> None:
        """Let a pass of SGLang's loop take its time, but none beyond the next arrival."""
        self._clock.idle_pass(self._moment() if self._held else math.inf)

    def elapsed(self) -> float:
        """Virtual seconds since the trace's beginning."""
        return self._clock.now() - self._zero

    def _begin(self) -> None:
        for of, coming in self._coming.items():
            if len(coming) >= of:
                self._held = sorted(coming[:of], key=lambda held: held[0], reverse=True)
                self._coming[of] = coming[of:]
                self._zero, self._served = self._clock.now(), True
                return

    def _moment(self) -> float:
        return self._zero + self._held[-1][0].at_s

    def _aborted(self, abort: Any) -> list[Any]:
        named: list[Any] = []
        for waiting in (self._held, *self._coming.values()):
            kept: list[tuple[Arrival, Any]] = []
            for arrival, request in waiting:
                if abort.abort_all or request.rid.startswith(abort.rid):
                    named.append(request)
                else:
                    kept.append((arrival, request))
            waiting[:] = kept
        return named


def arrival_of(message: Any) -> Arrival | None:
    """What a message from the front end says of its arrival; None: nothing.

    Raises:
        ValueError: As `parse_arrival`, unless the front end checked it (`request_checks`).
    """
    custom = getattr(getattr(message, "sampling_params", None), "custom_params", None)
    if not isinstance(custom, dict) or ARRIVAL_KEY not in custom:
        return None
    return parse_arrival(custom[ARRIVAL_KEY])


def parse_arrival(fields: Any) -> Arrival:
    """What a client said of an arrival.

    Raises:
        ValueError: A field is missing or cannot be meant; the message names it and what is allowed.
    """
    if not isinstance(fields, Mapping):
        raise ValueError(
            f"{ARRIVAL_KEY} is {fields!r}; allowed is an object with at_s, index and of."
        )
    at_s, index, of = fields.get("at_s"), fields.get("index"), fields.get("of")
    # bool is an int to Python, but no client means a number by it.
    if type(of) is not int or of < 1:
        raise _refused("of", of, "a whole number of at least 1")
    if type(index) is not int or not 0 <= index < of:
        raise _refused("index", index, f"a whole number from 0 and below of, which is {of}")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= LATEST_S:
        raise _refused("at_s", at_s, f"a number of seconds from 0 to {LATEST_S:g}")
    return Arrival(float(at_s), index, of)


def _refused(field: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{ARRIVAL_KEY}.{field} is {value!r}; allowed is {allowed}.")


def _members(message: Any) -> Sequence[Any]:
    """The requests of a batch, which arrive one by one, where one of them says when."""
    batch = getattr(message, "batch", None)
    if isinstance(batch, list) and any(arrival_of(each) is not None for each in batch):
        return batch
    return (message,)
