"""Priorities that change while requests run: FastSwitch's Random and Markov patterns (4.2).

Both are precomputed, as in the paper. The paper describes them in words; the formulas are ours. It
gives update frequencies per engine iteration (0.02 to 0.04); here they are per second, which is
that times the iterations per second of the engine (0.04 at 25 ms an iteration: 1.6 per second).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenflow_sgl.lab.traces.parameters import FloatArray, IntArray, check, parameter
from tokenflow_sgl.lab.traces.request import PriorityUpdate, TraceError

MAX_DRAWS = 50_000_000
"""Most priorities (requests times updates) that may be drawn for one trace."""


class Priorities(Protocol):
    """Draws priorities and their changes."""

    def draw(
        self, rng: np.random.Generator, arrivals: FloatArray
    ) -> tuple[IntArray, tuple[PriorityUpdate, ...]]:
        """Draw the priorities of requests.

        Args:
            rng: Where randomness comes from.
            arrivals: When requests arrive, seconds, sorted, shape (n,).

        Returns:
            Priority of each request at its arrival, shape (n,), and the changes, by time.

        Raises:
            TraceError: There would be too many changes.
        """
        ...


@dataclass(frozen=True, slots=True)
class RandomPriorities:
    """At each update every request draws its priority anew, uniformly: no memory at all."""

    frequency: float = parameter("updates per second", low=0, above=True)
    levels: int = parameter("priorities are 0 to levels - 1", low=2, high=1_000_000)
    active_s: float = parameter(
        "seconds after its arrival during which a request is updated", low=0, above=True
    )

    def __post_init__(self) -> None:
        check(self)

    def draw(
        self, rng: np.random.Generator, arrivals: FloatArray
    ) -> tuple[IntArray, tuple[PriorityUpdate, ...]]:
        """See `Priorities.draw`."""
        first = rng.integers(0, self.levels, len(arrivals))
        now = first.copy()
        updates: list[PriorityUpdate] = []
        for time, live in _ticks(arrivals, self.frequency, self.active_s):
            _change(updates, now, time, live, rng.integers(0, self.levels, live.stop - live.start))
        return first, tuple(updates)


@dataclass(frozen=True, slots=True)
class MarkovPriorities:
    """Requests served often or recently have priority, so that service has temporal locality.

    At each update `slots` of the requests are served. A request is chosen with a weight of
    `locality` times its part of all scores plus `1 - locality` times an equal part. Its score is an
    exponential average of having been served, s <- memory s + (1 - memory) served, and its priority
    is floor(levels s). Newcomers start at 0. The next priorities depend on the present scores only.
    """

    frequency: float = parameter("updates per second", low=0, above=True)
    levels: int = parameter("priorities are 0 to levels - 1", low=2, high=1_000_000)
    active_s: float = parameter(
        "seconds after its arrival during which a request is updated", low=0, above=True
    )
    slots: int = parameter("requests served at each update", low=1)
    locality: float = parameter("weight of past service in the choice", low=0, high=1, default=0.9)
    memory: float = parameter("part of its score that a request keeps", low=0, high=1, default=0.8)

    def __post_init__(self) -> None:
        check(self)

    def draw(
        self, rng: np.random.Generator, arrivals: FloatArray
    ) -> tuple[IntArray, tuple[PriorityUpdate, ...]]:
        """See `Priorities.draw`."""
        first = np.zeros(len(arrivals), np.int64)
        now = first.copy()
        scores = np.zeros(len(arrivals))
        updates: list[PriorityUpdate] = []
        for time, live in _ticks(arrivals, self.frequency, self.active_s):
            score = scores[live]  # a view: what follows writes through
            count, total = len(score), score.sum()
            equal = np.full(count, 1.0 / count)
            past = score / total if total else equal
            weights = self.locality * past + (1 - self.locality) * equal
            # The largest of log(u) / weight are a weighted draw without replacement
            # (Efraimidis and Spirakis 2006), also where weights are zero.
            keys = np.log(rng.random(count)) / np.maximum(weights, 1e-300)
            served = np.zeros(count)
            served[np.argsort(-keys)[: self.slots]] = 1.0
            score *= self.memory
            score += (1 - self.memory) * served
            levels = np.minimum((self.levels * score).astype(np.int64), self.levels - 1)
            _change(updates, now, time, live, levels)
        return first, tuple(updates)


def _ticks(arrivals: FloatArray, frequency: float, active_s: float) -> list[tuple[float, slice]]:
    """Times of updates and the requests that each concerns; updates that concern none are left out.

    Arrivals are sorted and all are active equally long, so that these requests are a range.
    """
    span_s = float(arrivals[-1] - arrivals[0]) if len(arrivals) else 0.0
    if max(len(arrivals) * active_s, span_s) * frequency > MAX_DRAWS:
        raise TraceError(
            f"{len(arrivals)} requests with {frequency:g} updates per second for {active_s:g} s "
            f"are more than {MAX_DRAWS} priorities; lower frequency or active_s"
        )
    if not len(arrivals):
        return []
    last = math.floor((arrivals[-1] + active_s) * frequency)
    first = math.ceil(arrivals[0] * frequency)
    times = np.arange(first, last + 1) / frequency
    starts = np.searchsorted(arrivals, times - active_s, side="right")
    stops = np.searchsorted(arrivals, times, side="right")
    return [
        (time, slice(start, stop))
        for time, start, stop in zip(times.tolist(), starts.tolist(), stops.tolist(), strict=True)
        if start < stop
    ]


def _change(
    updates: list[PriorityUpdate], now: IntArray, time: float, live: slice, levels: IntArray
) -> None:
    """Set new priorities and note those that differ."""
    for index in (np.flatnonzero(now[live] != levels) + live.start).tolist():
        updates.append(PriorityUpdate(time, index, int(levels[index - live.start])))
    now[live] = levels


PRIORITIES: Mapping[str, type[Priorities]] = {
    "random": RandomPriorities,
    "markov": MarkovPriorities,
}
"""Patterns by the name that the command line uses."""
