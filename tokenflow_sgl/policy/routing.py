"""Which server gets a newcomer: the one with the most headroom, as a router knows it.

A router reads the servers' headroom once in a while. Between two readings it takes off what it has
sent itself, so that a burst does not go to one server. The simulator's router `headroom` and
examples/headroom_proxy.py both go by this.
"""

from __future__ import annotations

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

    Attributes:
        tokens: By the number of each server that answers.
    """

    def __init__(self) -> None:
        self.tokens: dict[int, float] = {}

    def read(self, server: int, tokens: float | None) -> None:
        """Take a reading, tokens; None: the server does not answer and is left out."""
        if tokens is None:
            self.tokens.pop(server, None)
        else:
            self.tokens[server] = tokens

    def choose(self, work: float) -> int | None:
        """The server with the most headroom, the first of equals; `work` tokens are taken off it.

        Returns:
            Its number; None: all are left out, or none has been read yet.
        """
        best = max(sorted(self.tokens), key=self.tokens.__getitem__, default=None)
        if best is not None:
            self.tokens[best] -= work
        return best
