"""SGLang's queue orders that look at the prefix cache: longest prefix, and highest response ratio.

Follows --schedule-policy lpm and hrrn of SGLang 0.5.23, `SchedulePolicy.calc_priority`,
`_compute_prefix_matches`, `_sort_by_longest_prefix` and `_sort_by_hrrn`
(srt/managers/schedule_policy.py). Tokens found on the device or on the host count as computed. The
queue itself is sorted, so that an order outlasts the pass: one of more than `MOST_SORTED` requests
stays as it is. Where pages have more than one token, what waiting requests share counts by whole
pages; SGLang counts every token of it.
"""

from __future__ import annotations

import hashlib
import math

from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.step import Step

MOST_SORTED = 128
"""Waiting requests above which SGLang does not sort (`WAITING_QUEUE_PREFIX_MATCH_MAX`)."""
LITTLE_CACHED = 32
"""Tokens on the device up to which a request is compared with those that wait before it
(`IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD`)."""
MUCH_SHARED = 32
"""Tokens shared with one of those from which it goes behind all others
(`IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD`)."""


class CacheAwareScheduler(FcfsScheduler):
    """What the orders share: tokens that are cached, or that another request will compute."""

    def matched(self, stream: int) -> int:
        """Leading tokens on device or host; at least one is always left to compute."""
        _, reach = self.prefix(stream)
        return min(reach, self.total(stream) - 1)

    def deferred(self) -> set[int]:
        """Waiting streams that share a prefix with one before them, and have little of it yet."""
        memory, found = self.core.memory, set()
        coming: dict[int, int] = {}  # by node: tokens that a stream before will compute
        for stream in self.core.waiting:
            resident, _ = self.prefix(stream)
            if resident > LITTLE_CACHED:
                continue
            nodes, lengths = memory.path(stream)
            shared = 0
            for node, tokens in zip(nodes, lengths, strict=True):
                here = min(coming.get(node, 0), tokens)
                shared += here
                if here < tokens:
                    break
            if shared >= MUCH_SHARED:
                found.add(stream)
            else:
                coming.update(zip(nodes, lengths, strict=True))
                coming[stream] = self.total(stream) - sum(lengths)
        return found


class LongestPrefixScheduler(CacheAwareScheduler):
    """SGLang's scheduler with the queue by cached tokens, most first; equals stay in order."""

    def offered(self) -> list[int]:
        """The queue in this order."""
        waiting = self.core.waiting
        if len(waiting) <= MOST_SORTED:
            deferred = self.deferred()
            waiting.sort(key=lambda s: math.inf if s in deferred else -self.matched(s))
        return list(waiting)


class HrrnScheduler(CacheAwareScheduler):
    """SGLang's scheduler with the queue by response ratio, highest first.

    The ratio of a request is the tokens that were prefilled since it came, over those of its prompt
    that are not cached. Equals, as requests that came since the last prefill, go by the request's
    id. Ids are random, and so is this order.
    """

    def __init__(self, core: SimulatedCore) -> None:
        super().__init__(core)
        self._prefilled = 0  # SGLang's processed_tokens_counter
        self._at_arrival: dict[int, int] = {}  # what it was, by waiting stream

    def plan(self, now: float) -> Step | None:
        """The next step; a prefill's tokens count from here on."""
        step = super().plan(now)
        if step is not None and step.chunks:
            # A mixed step counts its decoding rows, too (`mix_with_running`).
            self._prefilled += sum(chunk.tokens for chunk in step.chunks) + len(step.decode)
        return step

    def offered(self) -> list[int]:
        """The queue in this order."""
        core, waiting = self.core, self.core.waiting
        known = self._at_arrival
        self._at_arrival = {stream: known.get(stream, self._prefilled) for stream in waiting}
        # A pass that admits nothing does not sort either.
        admits = not core.full or core.chunked is not None
        if admits and len(waiting) <= MOST_SORTED:
            deferred = self.deferred()
            waiting.sort(key=lambda stream: (*self._rank(stream, deferred), request_id(stream)))
        return list(waiting)

    def _rank(self, stream: int, deferred: set[int]) -> tuple[bool, bool, float]:
        if stream in deferred:
            return True, True, 0.0
        uncached = int(self.core.streams.prompt[stream]) - self.matched(stream)
        if uncached <= 0:  # a retracted one, with its prompt and more in the cache
            return False, False, 0.0
        return False, True, -(self._prefilled - self._at_arrival[stream]) / uncached


def request_id(stream: int) -> str:
    """An id as random as SGLang gives a request, but the same in every run."""
    return hashlib.blake2b(str(stream).encode(), digest_size=16).hexdigest()
