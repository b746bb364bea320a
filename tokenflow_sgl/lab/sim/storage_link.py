"""The simulated link to a storage: one fetch after the other, as SGLang's prefetch thread."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class StorageTransfer:
    """Tokens that come from the storage for one stream, or go there.

    Attributes:
        tokens: That were asked for.
        asked: When.
        landed: Tokens that are there.
        over: It ended, or was given up.
    """

    tokens: int
    asked: float
    landed: float = 0.0
    over: bool = False

    @property
    def missing(self) -> float:
        """Tokens that still have to come."""
        return self.tokens - self.landed


class StorageLink:
    """First come first served, at a constant rate.

    Args:
        rate: KV tokens per second, > 0.
        latency: Seconds between asking and the first token.

    Attributes:
        now: Until when it is known what has landed.
    """

    def __init__(self, rate: float, latency: float) -> None:
        self.rate = rate
        self.latency = latency
        self._queue: list[StorageTransfer] = []
        self.now = 0.0

    def ask(self, tokens: int, now: float) -> StorageTransfer:
        """Another fetch, behind all others; `now` may be the end of a step under way."""
        fetch = StorageTransfer(tokens, now)
        self._queue.append(fetch)
        return fetch

    def give_up(self, fetch: StorageTransfer, now: float) -> None:
        """Nothing more of it comes; those behind it move up."""
        self.advance(now)
        fetch.over = True
        if fetch in self._queue:
            self._queue.remove(fetch)

    def advance(self, now: float) -> None:
        """What has landed by then."""
        while self._queue and self.now < now:
            fetch = self._queue[0]
            begin = max(self.now, fetch.asked + self.latency)
            if begin >= now:
                break
            whole = max(fetch.missing, 0.0) / self.rate
            if begin + whole <= now:
                fetch.landed, fetch.over = max(fetch.landed, float(fetch.tokens)), True
                self.now = begin + whole
                del self._queue[0]
            else:
                fetch.landed += (now - begin) * self.rate
                self.now = now
        self.now = max(self.now, now)

    def seconds(self, fetch: StorageTransfer, tokens: float, now: float) -> float:
        """From now until so many more tokens of a fetch have landed; infinite: it was given up."""
        if tokens <= 0.0:
            return 0.0
        if fetch.over:
            return math.inf
        moment = now
        for other in self._queue:
            moment = max(moment, other.asked + self.latency)
            more = tokens if other is fetch else other.missing
            moment += more / self.rate
            if other is fetch:
                break
        return moment - now

    @property
    def lands_at(self) -> float:
        """When the first fetch has landed; infinite: there is none."""
        if not self._queue:
            return math.inf
        return self.now + self.seconds(self._queue[0], self._queue[0].missing, self.now)
