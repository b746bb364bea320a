"""The slow, obvious reader: an explicit buffer, one token at a time, in exact fractions.

It shares no formula with the package: it walks from event to event (a token arrives, the reader
finishes one) and writes down what happens. Every fast form is tested against it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from fractions import Fraction

import pytest


class SlowReader:
    def __init__(self, rate: Fraction, output_tokens: int) -> None:
        self.period = 1 / rate
        self.output_tokens = output_tokens
        self.buffer: deque[int] = deque()  # tokens that wait to be read
        self.busy_until: Fraction | None = None  # end of the token being read
        self.idle_since: Fraction | None = None
        self.arrived = 0
        self.consumed: list[Fraction] = []
        self.met: list[Fraction] = []
        self.stalls: list[Fraction] = []
        self.weights: list[Fraction] = []

    def advance(self, now: Fraction) -> None:
        while self.busy_until is not None and self.busy_until <= now:
            done = self.busy_until
            if self.buffer:
                self.buffer.popleft()
                self._take(done)
            else:
                self.busy_until, self.idle_since = None, done

    def unread(self, now: Fraction) -> Fraction:
        self.advance(now)
        being_read = Fraction(0)
        if self.busy_until is not None:
            being_read = (self.busy_until - now) / self.period
        return len(self.buffer) + being_read

    def push(self, now: Fraction) -> None:
        self.met.append(self.unread(now))
        self.weights.append(self._weight(self.met[-1]))
        self.arrived += 1
        if self.busy_until is not None:
            self.stalls.append(Fraction(0))
            self.buffer.append(self.arrived)
            return
        self.stalls.append(Fraction(0) if self.idle_since is None else now - self.idle_since)
        self._take(now)

    @property
    def stall_seconds(self) -> Fraction:
        return sum(self.stalls, Fraction(0))

    @property
    def stall_count(self) -> int:
        return sum(stall > Fraction(1, 10) for stall in self.stalls)

    @property
    def effective(self) -> Fraction:
        return sum(self.weights, Fraction(0))

    def _take(self, now: Fraction) -> None:
        self.consumed.append(now)
        self.busy_until, self.idle_since = now + self.period, None

    def _weight(self, buffer: Fraction) -> Fraction:
        low, high = Fraction(self.output_tokens, 10), Fraction(self.output_tokens, 5)
        if buffer <= low:
            return Fraction(1)
        if buffer >= high:
            return Fraction(0)
        return (high - buffer) / (high - low)


@pytest.fixture(scope="session")
def slow_reader() -> Callable[[Fraction, int], SlowReader]:
    return SlowReader


@pytest.fixture(scope="session")
def slow_replay() -> Callable[[Iterable[Fraction], Fraction, int], SlowReader]:
    def replay(times: Iterable[Fraction], rate: Fraction, output_tokens: int) -> SlowReader:
        reader = SlowReader(rate, output_tokens)
        for time in times:
            reader.push(time)
        return reader

    return replay
