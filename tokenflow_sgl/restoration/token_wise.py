"""Token-wise restoration: the head of a stored prefix is computed while its tail is loaded.

CacheFlow section 3.1 (arXiv 2604.25080): computing goes forward from the first token that is
missing, loading goes backward from the last one, and they meet. The paper's meeting point,
`N Tio / (Tc + Tio)` for N tokens, and its time `Tc Tio / (Tc + Tio)` hold where both costs are
linear. Computing is not: each token attends to all before it, so that the head is the cheap part,
and the best meeting point lies behind the linear one. Here it is found from the costs themselves.

What is loaded is whole pages, so is what is computed; only a gap that ends within a page leaves a
part of one.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass

Seconds = Callable[[int, int], float]
"""(Prefix tokens, new tokens) -> seconds of computing the new ones behind the prefix, in the
engine's chunks. Does not fall with either."""
Fetch = Callable[[int], float]
"""Tokens -> seconds until so many have arrived. Does not fall; infinite: they never arrive."""


@dataclass(frozen=True, slots=True)
class Split:
    """How a gap is restored by both sources.

    Attributes:
        head: Tokens that are computed, from the gap's beginning on; the others are loaded. 0: all
            are loaded; the whole gap: all are computed.
        seconds: Until both are done.
    """

    head: int
    seconds: float


def in_chunks(step: Callable[[int, int], float], chunk: int) -> Seconds:
    """Seconds of computing in chunks, step after step.

    Args:
        step: (New tokens, prefix tokens) -> seconds of one prefill step.
        chunk: New tokens of a step at most, >= 1 (SGLang's `chunked_prefill_size`).

    Raises:
        ValueError: `chunk` is below 1.
    """
    if chunk < 1:
        raise ValueError(f"chunk is {chunk!r}; allowed is 1 or more")

    def seconds(prefix: int, tokens: int) -> float:
        return sum(
            step(min(chunk, tokens - done), prefix + done) for done in range(0, tokens, chunk)
        )

    return seconds


def head_tokens(
    prefix: int,
    gap: int,
    *,
    compute: Seconds,
    fetch: Fetch,
    page: int,
    lead: float = 0.0,
    wait: float = 0.0,
) -> int:
    """Tokens of the head that are still to be computed from `prefix` on.

    To be asked anew before each chunk, with what has arrived by then: so a link that is faster,
    slower or dead moves the meeting point.

    Args:
        prefix: Tokens whose KV is on the device.
        gap: Tokens between these and the part of the tail that has arrived.
        compute: Seconds of computing.
        fetch: Seconds until the last `n` tokens of the gap have arrived.
        page: Tokens of a page, >= 1.
        lead: Seconds that the step under way still runs, before which none can start.
        wait: Seconds that waiting is rather chosen for than to start a chunk.

    Returns:
        The fewest whole pages `c` with `lead + compute(prefix, c) >= fetch(gap - c)`, or a page
        less where both are done sooner with that. The whole gap where nothing more arrives. 0: all
        of it arrives within `wait` seconds, or before the step under way ends, or no later than
        a page of it could be computed.

    Raises:
        ValueError: `page` is below 1.
    """
    if page < 1:
        raise ValueError(f"page is {page!r}; allowed is 1 or more")
    if gap <= 0:
        return 0
    if fetch(gap) <= max(lead, wait):
        return 0
    before, head = _around_meeting(prefix, gap, compute, fetch, page, lead)
    return head if lead + compute(prefix, head) < fetch(gap - before) else before


def best_split(
    prefix: int, gap: int, *, compute: Seconds, fetch: Fetch, page: int, lead: float = 0.0
) -> Split:
    """The split of a whole gap that is done soonest, of all whole pages.

    One source alone is a split, too: it wins where the other's fixed cost, the latency of a
    request or the shortest step, is more than all that it would take over.

    Args:
        prefix: Tokens before the gap whose KV is on the device.
        gap: Tokens whose KV is missing.
        compute: Seconds of computing.
        fetch: Seconds until the last `n` tokens of the gap have arrived.
        page: Tokens of a page, >= 1.
        lead: Seconds before computing can start.

    Raises:
        ValueError: `page` is below 1.
    """
    if page < 1:
        raise ValueError(f"page is {page!r}; allowed is 1 or more")
    if gap <= 0:
        return Split(0, 0.0)

    def done(head: int) -> float:
        computed = lead + compute(prefix, head) if head else 0.0
        return max(computed, fetch(gap - head) if head < gap else 0.0)

    # Where the two curves cross, and the page before: all others end later than one of them.
    heads = {0, *_around_meeting(prefix, gap, compute, fetch, page, lead), gap}
    # Of equal ones the least computing: the device has other work.
    best = min(sorted(heads), key=done)
    return Split(best, done(best))


def alone_is_sooner(
    prefix: int,
    missing: int,
    end: int,
    suffix: int,
    *,
    compute: Seconds,
    fetch: Fetch,
    page: int,
    lead: float = 0.0,
    gain: float = 0.0,
) -> bool:
    """Whether a request has its first token sooner if nothing more is loaded for it.

    What follows the stored prefix is computed in a step of its own where a tail was loaded, and in
    the same step where none was. So a short suffix costs a whole step more, which reads all weights
    once again, and what has landed of the tail may not be worth it.

    Args:
        prefix: Tokens whose KV is on the device.
        missing: Tokens between these and the part of the tail that has arrived.
        end: Tokens of the stored prefix.
        suffix: Tokens behind it, which are computed in any case.
        compute: Seconds of computing.
        fetch: Seconds until the last `n` tokens that are missing have arrived.
        page: Tokens of a page, >= 1.
        lead: Seconds before computing can start.
        gain: Seconds that loading more must save.
    """
    split = best_split(prefix, missing, compute=compute, fetch=fetch, page=page, lead=lead)
    alone = lead + compute(prefix, end - prefix + suffix)
    return alone <= split.seconds + compute(end, suffix) + gain


def tokens_within(prefix: int, tokens: int, seconds: float, *, compute: Seconds, page: int) -> int:
    """How many of these tokens are computed in the time, in whole pages unless all are.

    For a head that is computed while a request that comes before waits for its tail: the device is
    to be free when that has landed.
    """
    pages = -(-tokens // page)
    fits = bisect.bisect_right(
        range(1, pages + 1), seconds, key=lambda some: compute(prefix, min(some * page, tokens))
    )
    return min(fits * page, tokens)


def _around_meeting(
    prefix: int, gap: int, compute: Seconds, fetch: Fetch, page: int, lead: float
) -> tuple[int, int]:
    """The longest head that is computed before the rest has arrived, and the next longer one."""
    low, high = 1, -(-gap // page)
    while low < high:
        middle = (low + high) // 2
        tokens = middle * page
        if lead + compute(prefix, tokens) >= fetch(gap - tokens):
            high = middle
        else:
            low = middle + 1
    return (low - 1) * page, min(low * page, gap)
