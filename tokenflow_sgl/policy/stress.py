"""When to step in: the predicate that keeps the policy away from a server with free memory."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import State

LOW_SHARE = 0.10
"""Below this share of free device memory the policy decides."""


def under_stress(state: State, patience: float) -> bool:
    """True if a stream has to wait for memory, or soon will, and readers follow some of them.

    Stress is: a stream is paused or draining; the engine's own policy has passed over a
    waiting stream for more than `patience` seconds; the waiting prompts do not all fit
    beside ten per cent free; or running streams have used the memory up to that.
    """
    streams, memory = state.streams, state.memory
    if not streams.streaming.any():
        return False
    if streams.draining.any() or streams.paused_or_loading.any():
        return True
    spare = memory.kv.free - memory.kv.promised - LOW_SHARE * memory.kv.total
    waiting = streams.waiting
    if not waiting.any():
        return spare < 0
    running = int(np.count_nonzero(streams.running))
    count = int(np.count_nonzero(waiting))
    if running + count > memory.max_running:
        return True
    if state.now - float(streams.since[waiting].min()) > patience:
        return True
    return int(streams.prompt[waiting].sum()) + count * memory.page_size > spare
