"""How much of a paused stream's KV is loaded beside the steps now, and when that is given up again.

TokenFlow section 5.3: memory is freed piece by piece, by streams that are preempted or end, and the
streams that come back are loaded chunk by chunk into what is free. The most urgent stream gets all
of it, the next one what is left, and with each pass it is divided anew. Until its last chunk has
landed a stream cannot run, so what running streams need to decode on comes before it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.contract.reserve import DECODE_MARGIN_STEPS, Growth

LEAST_PART = 256
"""Tokens of the smallest chunk: each is a copy of its own, which costs the scheduler's thread half
a millisecond, and the next one starts a pass after it has landed."""


@dataclass(frozen=True, slots=True)
class DeviceRoom:
    """What the device's KV memory has beside the running streams.

    Attributes:
        free: Tokens that can be allocated.
        promised: Tokens that the prefill under way still needs.
        running: Streams that compute, or are about to.
        growth: How their KV grows.
    """

    free: int
    promised: int
    running: int
    growth: Growth

    @property
    def for_prefetch(self) -> int:
        """Tokens that prefetches may take: running streams, and one more, decode on for a while."""
        return self.free - self.promised - (self.running + 1) * self.growth.headroom

    @property
    def scarce(self) -> bool:
        """The next decode steps do not fit: before a stream is preempted, prefetches give way."""
        needed = self.growth.reserve(self.running, DECODE_MARGIN_STEPS)
        return self.free - self.promised < needed


def chunk(missing: int, room: int, part: int, page_size: int) -> int:
    """Tokens of a stream that are loaded now; 0: it waits for memory.

    Args:
        missing: Tokens that it lacks.
        room: Tokens that can be taken for it.
        part: The least that is worth a copy where it does not fit as a whole; 0: it comes as a
            whole.
        page_size: Tokens per page; all chunks but the last one are whole pages.
    """
    if missing <= room:
        return missing
    whole = room // page_size * page_size
    return whole if part and whole >= part else 0
