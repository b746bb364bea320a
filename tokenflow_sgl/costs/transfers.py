"""How fast KV crosses the link between device and host memory, learned from finished copies."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

MEMORY_TOKENS = 20_000
"""What `TransferRate` remembers of the link to the host, whose rate stays what it is."""
LATEST = 5
"""Copies that `LatestRate` looks at."""


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """One direction of the link, as measured.

    rate: KV tokens per second while it copies; NaN while unknown.
    queued: tokens that were asked for and have not arrived yet; only told of the way to the host.
    """

    rate: float = math.nan
    queued: int = 0

    def room(self, seconds: float) -> float:
        """Tokens more that arrive within `seconds`, behind what is queued; NaN while unknown."""
        return max(seconds * self.rate - self.queued, 0.0) if self.rate > 0.0 else math.nan

    def behind(self, tokens: int) -> MeasuredLink:
        """The link once `tokens` more are queued."""
        return MeasuredLink(self.rate, self.queued + tokens)


@dataclass(frozen=True, slots=True)
class Links:
    """Both directions; a full-duplex link copies both ways at once.

    store: device to host. load: host to device.
    """

    store: MeasuredLink = field(default_factory=MeasuredLink)
    load: MeasuredLink = field(default_factory=MeasuredLink)


class TransferRate:
    """The rate of one direction. Copies wait for each other, so their times add up."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A copy of `tokens` took `seconds`; what took no time says nothing."""
        if tokens <= 0 or not 0.0 < seconds < math.inf:
            return
        keep = math.exp(-tokens / MEMORY_TOKENS)
        self._tokens = self._tokens * keep + tokens
        self._seconds = self._seconds * keep + seconds

    @property
    def rate(self) -> float:
        """Tokens per second; NaN before the first copy."""
        return self._tokens / self._seconds if self._seconds > 0.0 else math.nan


class LatestRate:
    """The rate of a link that others use, too: the median of the latest copies' rates.

    A mean over time would be held up by the slow copies, of which one takes as long as many fast
    ones: after a link has become eight times as fast, it would take dozens of copies to say so. The
    median says so after three, and one copy that was held up does not count.

    Attributes:
        seconds: Time of all copies so far.
    """

    def __init__(self) -> None:
        self._rates: deque[float] = deque(maxlen=LATEST)
        self.seconds = 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """A copy of `tokens` took `seconds`; what took no time says nothing."""
        if tokens > 0 and 0.0 < seconds < math.inf:
            self._rates.append(tokens / seconds)
            self.seconds += seconds

    @property
    def rate(self) -> float:
        """Tokens per second; NaN before the first copy."""
        return median(self._rates) if self._rates else math.nan
