"""Which server gets a newcomer: the one with the most headroom, as a router knows it.

A router reads the servers' headroom once in a while. Between two readings it takes off what it has
sent itself, so that a burst does not go to one server. The simulator's router `headroom` and
examples/headroom_proxy.py both go by this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tokenflow_sgl.policy.headroom import WITHIN

READ_EVERY = 1.0
"""Seconds between two readings: servers put a new value on their metrics page as often."""


def newcomer_work(prompt: float, rate: float, limit: float) -> float:
    """What a request takes off a server's headroom, tokens.

    Args:
        prompt: Its tokens.
        rate: Tokens per second that its reader reads.
        limit: Tokens that its answer has at most; inf: no limit is known.

    Returns:
        The prompt, and the answer that the reader asks for within `WITHIN`.
    """
    return prompt + min(WITHIN * rate, limit)


class KnownHeadroom:
    """Headroom of several servers, as last read, less what was sent since.

    Until the first reading no server is known.
    """

    def __init__(self) -> None:
        self._tokens: list[float] = []

    def read(self, tokens: Sequence[float | None]) -> None:
        """Take a reading of all servers, tokens; None: a server that is to be left out."""
        self._tokens = [-math.inf if each is None else each for each in tokens]

    def leave_out(self, server: int) -> None:
        """Send nothing more to a server until the next reading."""
        self._tokens[server] = -math.inf

    def choose(self, work: float) -> int | None:
        """The server with the most headroom, the first of equals, and take `work` tokens off it.

        Returns:
            Its index; None: all are left out.
        """
        best = max(range(len(self._tokens)), key=self._tokens.__getitem__, default=None)
        if best is None or self._tokens[best] == -math.inf:
            return None
        self._tokens[best] -= work
        return best
