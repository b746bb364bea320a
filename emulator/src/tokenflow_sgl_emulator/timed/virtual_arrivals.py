"""Requests that wait for their moment on the virtual clock.

On a virtual clock a client cannot send a request at its moment. So it sends all requests of a trace
at once, and each carries under `ARRIVAL_KEY` of its `custom_params` when it arrives:

    {"emulated_arrival": {"at_s": 0.25, "index": 3, "of": 60}}

The trace begins when all of them (`of`) are there: how fast they came does not matter. `at_s`
counts from then, `index` orders requests of one moment. Every token of an answer comes with its own
moment on the same count, under `STAMP_KEY` of SGLang's `meta_info`. One trace at a time: the next
one begins when the server has nothing left to do. Requests that carry nothing arrive when they
come.

A turn of a conversation is only known when the answer before it has ended. Its client says with
each turn how many more there will be (`later_turns`), and with each but the first one after whose
answer it comes (`after`: that one's `index`). Where such an answer has ended well, the clock stands
until the next turn is there.
"""

import bisect
import itertools
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokenflow_sgl_emulator.timed.clock import VirtualClock

ARRIVAL_KEY = "emulated_arrival"
STAMP_KEY = "emulated_s"
LATEST_S = 1e9
"""Seconds after its beginning at which a trace may still go on: some thirty years."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, order=True)
class Arrival:
    """When a request arrives.

    Attributes:
        at_s: Virtual seconds after the trace's beginning, from 0 to `LATEST_S`.
        index: Its place among those that arrive at the same moment, from 0 and below `of`.
        of: Number of requests of the trace.
        later_turns: So many of them will be sent one after the other, each after the answer before
            it, and the first of them after the answer to this request.
        after: The index of the request after whose answer this one comes; None: after none.
    """

    at_s: float
    index: int
    of: int
    later_turns: int = field(default=0, compare=False)
    after: int | None = field(default=None, compare=False)


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
        self._turns: dict[str, Arrival] = {}  # with later ones, by request, until they have ended
        self._answered: dict[str, Any] = {}  # SGLang's requests of these
        self._awaited: set[int] = set()  # the answers behind which a turn has not come yet

    @property
    def awaits_turns(self) -> bool:
        """Whether the clock has to stand: a turn is not there whose moment is not known."""
        return bool(self._awaited)

    def note_answers(self, requests: Iterable[Any]) -> None:
        """A step brings these requests of SGLang's tokens, maybe the last ones."""
        if self._turns:
            self._answered |= {each.rid: each for each in requests if each.rid in self._turns}

    def give_up_turns(self) -> None:
        """They do not come: their client has gone."""
        _LOGGER.warning(
            "%d turns of conversations were announced and did not come; the virtual clock goes on.",
            len(self._awaited),
        )
        self._awaited.clear()

    def receive(self, messages: Iterable[Any]) -> list[Any]:
        """What SGLang gets of these messages: none that is held, and those that are due now."""
        self._look_for_ends()
        passed: list[Any] = []
        for message in (member for each in messages for member in _members(each)):
            arrival = arrival_of(message)
            if arrival is not None and arrival.after is not None:
                self._awaited.discard(arrival.after)
                bisect.insort(self._held, (arrival, message), key=_latest_first)
                self._served = True
                continue
            if arrival is not None:
                self._coming.setdefault(arrival.of, []).append((arrival, message))
                continue
            if hasattr(message, "abort_all"):
                passed += self._aborted(message)  # SGLang can only abort what it knows
            passed.append(message)
        if not self._served:
            self._begin()
        while self._held and self._moment() <= self._clock.now():
            arrival, message = self._held.pop()
            if arrival.later_turns:
                self._turns[message.rid] = arrival
            passed.append(message)
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

    def _look_for_ends(self) -> None:
        for rid, request in list(self._answered.items()):
            if request.finished():
                arrival = self._turns.pop(rid)
                del self._answered[rid]
                if request.finished_reason.to_json()["type"] != "abort":
                    self._awaited.add(arrival.index)

    def _begin(self) -> None:
        for of, coming in self._coming.items():
            known = itertools.accumulate(1 + arrival.later_turns for arrival, _ in coming)
            complete = next((number for number, all_ in enumerate(known, 1) if all_ >= of), None)
            if complete is not None:
                self._held = sorted(coming[:complete], key=_latest_first)
                self._coming[of] = coming[complete:]
                self._zero, self._served = self._clock.now(), True
                self._turns, self._answered = {}, {}
                return

    def _moment(self) -> float:
        return self._zero + self._held[-1][0].at_s

    def _aborted(self, abort: Any) -> list[Any]:
        named: list[Any] = []
        if abort.abort_all:
            self._awaited.clear()
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
    later, after = fields.get("later_turns", 0), fields.get("after")
    # bool is an int to Python, but no client means a number by it.
    if type(of) is not int or of < 1:
        raise _refused("of", of, "a whole number of at least 1")
    if type(index) is not int or not 0 <= index < of:
        raise _refused("index", index, f"a whole number from 0 and below of, which is {of}")
    if type(later) is not int or not 0 <= later < of:
        raise _refused("later_turns", later, f"a whole number from 0 and below of, which is {of}")
    if after is not None and (type(after) is not int or not 0 <= after < of or after == index):
        raise _refused("after", after, f"the index of another request, below of, which is {of}")
    if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= LATEST_S:
        raise _refused("at_s", at_s, f"a number of seconds from 0 to {LATEST_S:g}")
    return Arrival(float(at_s), index, of, later, after)


def _latest_first(held: tuple[Arrival, Any]) -> tuple[float, int]:
    return -held[0].at_s, -held[0].index


def _refused(field: str, value: Any, allowed: str) -> ValueError:
    return ValueError(f"{ARRIVAL_KEY}.{field} is {value!r}; allowed is {allowed}.")


def _members(message: Any) -> Sequence[Any]:
    """The requests of a batch, which arrive one by one, where one of them says when."""
    batch = getattr(message, "batch", None)
    if isinstance(batch, list) and any(arrival_of(each) is not None for each in batch):
        return batch
    return (message,)
