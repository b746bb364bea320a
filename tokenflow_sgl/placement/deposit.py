"""Token deposit: when tokens that are generated early are delivered.

OrbitFlow section 3.2. What is generated goes into the deposit, and one token leaves it per interval
of the objective. An empty deposit delivers the next token as soon as it is there, and the interval
counts from then on. When the answer is complete the rest goes out at once.

`Deposit` is the rule token by token, for a server; the functions are the same rule for all tokens
of an answer at once, for a simulator. A test holds them against each other.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from tokenflow_sgl.contract import FloatArray


def delivery_times(generated: FloatArray, interval: float, *, complete: bool = True) -> FloatArray:
    """When each token is delivered.

    Args:
        generated: Seconds at which each was generated, of shape (tokens,), not falling.
        interval: Seconds between tokens that the objective asks for, >= 0.0.
        complete: The last token ends the answer.

    Returns:
        Seconds, of shape (tokens,): none before it was generated.

    Raises:
        ValueError: `interval` is negative or infinite, or the times fall.
    """
    if not (math.isfinite(interval) and interval >= 0.0):
        raise ValueError(f"interval is {interval!r}; allowed is 0 or more")
    if (np.diff(generated) < 0.0).any():
        raise ValueError("generated falls; allowed are times in their order")
    # d[j] = max(g[j], d[j - 1] + interval) is the largest g[i] + (j - i) * interval of all i <= j.
    ideal = interval * np.arange(generated.size)
    delivered: FloatArray = np.maximum.accumulate(generated - ideal) + ideal
    delivered = np.maximum(delivered, generated)  # whatever the rounding
    if complete and generated.size:
        delivered = np.minimum(delivered, generated[-1])
    return delivered


def held_tokens(
    generated: FloatArray, interval: float, now: float, *, complete: bool = False
) -> int:
    """Tokens in the deposit at a time.

    Args:
        generated: Seconds at which each token so far was generated, of shape (tokens,).
        interval: As of `delivery_times`.
        now: Seconds.
        complete: The last of these tokens ended the answer.
    """
    delivered = delivery_times(generated, interval, complete=complete)
    return int((generated <= now).sum() - (delivered <= now).sum())


def covered_until(generated: FloatArray, interval: float) -> float:
    """Until when a stream that pauses keeps its objective: its next token is due then.

    Args:
        generated: Seconds at which each token so far was generated, of shape (tokens,).
        interval: As of `delivery_times`.

    Returns:
        Seconds; minus infinity: no token was generated yet.
    """
    if not generated.size:
        return -math.inf
    return float(delivery_times(generated, interval, complete=False)[-1]) + interval


class Deposit:
    """The deposit of one answer that is being generated.

    It counts tokens; who has it keeps their text. All times are seconds on one clock.

    Attributes:
        interval: Seconds between two tokens that leave; infinity: none leaves.

    Args:
        interval: Seconds, above 0.0.
    """

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self._generated: deque[float] = deque()
        self._free = 0
        self._last = self._before = -math.inf

    @property
    def held(self) -> int:
        """Tokens that the deposit holds."""
        return self._free + len(self._generated)

    def put(self, tokens: int, now: float, *, free: int = 0) -> None:
        """Add tokens that were generated now; the first `free` of them take no interval."""
        self._free += free
        self._generated.extend([now] * (tokens - free))

    def due(self) -> float:
        """When the next token leaves; infinity: there is none, or none leaves."""
        if self._free:
            return -math.inf
        if not self._generated or math.isinf(self.interval):
            return math.inf
        return max(self._generated[0], self._last + self.interval)

    def take(self, now: float) -> int:
        """Take out what is due now; returns how many tokens that is.

        The next interval begins when a token was due, not when it was taken: so a caller that comes
        late each time falls no further behind.
        """
        if self.due() > now:
            return 0
        self._before = self._last
        taken, self._free = self._free, 0
        while (due := self.due()) <= now:
            self._generated.popleft()
            self._last = due
            taken += 1
        return taken

    def unseen(self) -> None:
        """What was taken out last is nothing that a reader sees: it took no interval."""
        self._last = self._before

    def change(self, interval: float, now: float) -> None:
        """The interval is another one from now on; what has waited longer leaves at once, alone.

        Args:
            interval: Seconds, above 0.0; infinity: none leaves until there is another one.
            now: Seconds.
        """
        self.interval = interval
        if math.isfinite(interval):
            self._last = max(self._last, now - interval)
        self._before = self._last
