"""When requests are due: on a fixed schedule, or for later turns after the answer before them.

No clock of its own: times go in and come out in seconds of the trace's clock.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence

from tokenflow_sgl.choices import Sessions
from tokenflow_sgl.lab.traces.request import TraceRequest


class Due:
    """Requests by the time at which each is due."""

    def __init__(self, due: Iterable[tuple[float, int]] = ()) -> None:
        self._heap = list(due)
        heapq.heapify(self._heap)

    @property
    def next_s(self) -> float | None:
        """When the first request is due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def push(self, due_s: float, index: int) -> None:
        """Add a request that is due at a time."""
        heapq.heappush(self._heap, (due_s, index))

    def pop(self, now_s: float) -> list[tuple[float, int]]:
        """Take the requests that are due by now: when each was due, and its index."""
        due = []
        while self._heap and self._heap[0][0] <= now_s:
            due.append(heapq.heappop(self._heap))
        return due

    def by(self, moment_s: float) -> list[int]:
        """Indices of the requests that are due by then; they are not removed."""
        return [index for due_s, index in self._heap if due_s <= moment_s]

    def all(self) -> list[int]:
        """Indices of all requests."""
        return [index for _, index in self._heap]


class Schedule:
    """The requests that are still to be sent.

    With open sessions every request is due at its `arrival_s`. With closed ones that holds for the
    first turn of each session in the trace; a later one becomes due `think_s` after the answer of
    the turn before it has ended, and never if that turn failed.

    Attributes:
        previous: For a later turn of a closed session: the turn before it.
    """

    def __init__(self, requests: Sequence[TraceRequest], sessions: Sessions) -> None:
        self._requests = requests
        self._next: dict[int, int] = {}
        self.previous: dict[int, int] = {}
        if sessions is Sessions.closed:
            for turns in _sessions(requests):
                for earlier, later in itertools.pairwise(turns):
                    self._next[earlier] = later
                    self.previous[later] = earlier
        self._due = Due(
            (request.arrival_s, index)
            for index, request in enumerate(requests)
            if index not in self.previous
        )

    @property
    def next_s(self) -> float | None:
        """When the next request is due; None if that depends on an answer, or if there is none."""
        return self._due.next_s

    def has_next(self, index: int) -> bool:
        """Whether a later turn waits for the answer of this request."""
        return index in self._next

    def due_by(self, moment_s: float) -> list[int]:
        """Indices of the requests that will be due by then, whatever answers come."""
        return self._due.by(moment_s)

    def pop(self, now_s: float) -> list[tuple[float, int]]:
        """Take the requests that are due by now: when each was due, and its index."""
        return self._due.pop(now_s)

    def succeeded(self, index: int, ended_s: float) -> None:
        """An answer has ended well: the next turn becomes due."""
        later = self._next.pop(index, None)
        if later is not None:
            self._due.push(ended_s + self._requests[later].think_s, later)

    def failed(self, index: int, ended_s: float) -> list[int]:
        """A request failed then; return the later turns of its session: they will not be sent."""
        dropped = []
        while (later := self._next.pop(index, None)) is not None:
            dropped.append(later)
            index = later
        return dropped


class ClosedLoop(Schedule):
    """The requests that are still to be sent where so many are always under way.

    The next one, in the order of the trace, is due when one ends. Arrivals do not count, and
    neither do think times: a later turn of a closed session waits for the answer before it, and
    then for its place.

    Args:
        requests: All requests.
        sessions: Whether later turns wait for the answers before them.
        places: Requests under way at any time, as far as there are any that can be sent.
    """

    def __init__(self, requests: Sequence[TraceRequest], sessions: Sessions, places: int) -> None:
        super().__init__(requests, sessions)
        # An end makes at most one turn ready and frees one place: a place that stays empty once is
        # not needed again.
        ready = sorted(self._due.all())
        self._due = Due((0.0, index) for index in ready[:places])
        self._ready = ready[places:]  # sorted, so a heap

    def succeeded(self, index: int, ended_s: float) -> None:
        """An answer has ended well: the next turn may be sent, and a place is free."""
        later = self._next.pop(index, None)
        if later is not None:
            heapq.heappush(self._ready, later)
        self._fill(ended_s)

    def failed(self, index: int, ended_s: float) -> list[int]:
        """A request failed then: a place is free, but the later turns will not be sent."""
        dropped = super().failed(index, ended_s)
        self._fill(ended_s)
        return dropped

    def _fill(self, free_s: float) -> None:
        if self._ready:
            self._due.push(free_s, heapq.heappop(self._ready))


def _sessions(requests: Sequence[TraceRequest]) -> list[list[int]]:
    """The indices of each session's requests, in the order of their turns."""
    sessions: dict[str, list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        if request.session is not None:
            sessions[request.session].append(index)
    for turns in sessions.values():
        turns.sort(key=lambda index: requests[index].turn)
    return list(sessions.values())
