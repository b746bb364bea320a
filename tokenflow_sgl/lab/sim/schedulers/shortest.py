"""SGLang's shortest prefill first: the queue by the prompt tokens that are still to be computed.

Follows --schedule-policy shortest-prefill-first of SGLang 0.5.23, `_sort_by_shortest_prefill` and
`shortest_prefill_chunk_limit` (srt/managers/schedule_policy.py). Tokens found on the device or on
the host count as computed. While a long prompt is prefilled in part, a step leaves it only what
shorter waiting prompts do not need. A request whose prefix another waiting one is about to compute
goes behind all others.
"""

from __future__ import annotations

from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.schedulers.cache_aware import CacheAwareScheduler
from tokenflow_sgl.lab.sim.schedulers.prefill_budget import PrefillBudget


class ShortestPrefillScheduler(CacheAwareScheduler):
    """SGLang's scheduler with its queue in the order of uncached prompt tokens."""

    def __init__(self, core: SimulatedCore) -> None:
        super().__init__(core)
        self._queue: list[int] = []  # as admission sees it in this pass

    def offered(self) -> list[int]:
        """The queue by the tokens still to compute, among equals first come first served."""
        since = self.core.streams.phases.since
        deferred = self.deferred()
        self._queue = sorted(
            self.core.waiting,
            key=lambda stream: (stream in deferred, self._uncomputed(stream), since[stream]),
        )
        return self._queue

    def chunk_left(self, stream: int, budget: PrefillBudget) -> int:
        """What is left of the step when all shorter prompts that fit have their part of it."""
        page, paged = self.core.options.page_size, self.core.memory.paged
        if budget.chunk < 2 * page:
            return budget.chunk
        left = self.total(stream) - self.core.computed
        kept = 0
        for waiting in self._queue:
            tokens = self._uncomputed(waiting)
            if tokens >= left or kept + paged(tokens) > budget.chunk - page:
                break
            kept += paged(tokens)
        return (budget.chunk - kept) // page * page if kept else budget.chunk

    def _uncomputed(self, stream: int) -> int:
        return self.total(stream) - self.matched(stream)
