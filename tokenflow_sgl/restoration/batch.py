"""Several restorations at once: whose KV a channel loads next.

CacheFlow section 3.3, Algorithm 1: each channel loads for the request with the largest remaining
recompute, decided anew after each chunk, so that I/O goes where it saves most computing. A request
that is about to miss its objective comes before that: least slack first.

Where the device computes one request after the other, as SGLang does, loading in that same order
(`jobs.IoOrder.IN_TURN`) has the lower mean TTFT: half of the work of the first one is taken
from the device at once, instead of a part of each. See benchmarks/papers/cacheflow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pending:
    """What one request still wants from a channel.

    Attributes:
        recompute: Seconds of computing its gap, all of it, >= 0.0.
        load: Seconds of loading its gap, all of it, >= 0.0.
        slack: Seconds until its first token is due, or its reader runs dry; negative: it is late;
            infinite: there is no such moment.
    """

    recompute: float
    load: float
    slack: float


def io_order(pending: Sequence[Pending]) -> list[int]:
    """The requests of one channel in the order in which it serves them, by their index.

    One with more slack than all of them together take to load is in time in any order; the others
    come first, least slack first. Then the largest remaining recompute; equal ones keep their
    order.
    """
    whole = sum(one.load for one in pending)

    def key(index: int) -> tuple[bool, float, float]:
        one = pending[index]
        in_time = one.slack > whole
        return in_time, 0.0 if in_time else one.slack, -one.recompute

    return sorted(range(len(pending)), key=key)


def link_shares(left: Sequence[int], most: int) -> list[int]:
    """Tokens of each fetch that a link is told to load next.

    It cannot be told otherwise for a while. So it gets no more than it can load meanwhile, and what
    is due first may be another fetch after that.

    Args:
        left: Tokens that each fetch still has to bring and the link was not told of, the fetch that
            goes first at first.
        most: Tokens that it can load until it is told again, without what it was told before.
    """
    shares = []
    for tokens in left:
        shares.append(min(tokens, max(most, 0)))
        most -= tokens
    return shares
