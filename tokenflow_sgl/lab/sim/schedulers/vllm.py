"""vLLM 0.5.5's default scheduler, the baseline of LayerKV's evaluation: first come first served.

Follows `Scheduler._schedule_default` and `BlockSpaceManagerV1.can_allocate` of vllm.core: prefills
of whole prompts go before decode steps, a request is admitted once there are blocks for its prompt
and a hundredth of all blocks stays free, and nothing is reserved for answers. Where a decode step
lacks a block the request that came last is thrown out, and its KV is computed again as the first
one of the queue.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler

WATERMARK = 0.01
"""Share of the blocks that a newcomer leaves free."""
MOST_RUNNING = 256
"""vLLM's default of `max_num_seqs`."""


class VllmScheduler(FcfsScheduler):
    """Admits by the prompt alone, and recomputes what it has to throw out."""

    def reserved(self, stream: int, done: int) -> int:
        """Nothing, whatever the stream may generate."""
        return 0

    def reserved_for_running(self) -> float:
        """Tokens that vLLM keeps free: its watermark, whatever runs."""
        return WATERMARK * self.core.memory.device

    def requeue(self, stream: int, now: float) -> None:
        """A stream was thrown out: it is the first one of the queue."""
        self.core.waiting.insert(0, stream)
        self.core.streams.phases.move(stream, Phase.WAITING, now)

    def _retract(self, now: float) -> None:
        core = self.core
        # The index of a stream is its place in the order of arrival.
        kept = np.sort(core.running)
        while len(kept) > 1 and core.memory.free < core.next_growth(kept):
            last, kept = int(kept[-1]), kept[:-1]
            core.park(last, now, keep=False)
            self.requeue(last, now)
            self.retracted += 1
        core.running = core.running[np.isin(core.running, kept)]
        core.full = False
