"""When to step in: the predicate that keeps the policy away from a server with room."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.policy.state import Memory, State

LOW_SHARE = 0.10
"""Below this share of free device memory the policy watches over evictions."""
DECODE_MARGIN_STEPS = 4
"""Decode steps that must fit, or streams are preempted now (draining takes one)."""
DECODE_TARGET_STEPS = 24
"""Decode steps that fit after such a preemption."""


def decode_reserve(memory: Memory, batch: int, steps: int) -> int:
    """Tokens that `batch` streams need for `steps` more decode steps, in whole pages.

    With pages, a row needs a fresh page every page_size steps and all rows may need it
    at once, so a page per row is the floor.
    """
    if memory.page_size == 1:
        return batch * steps
    pages_per_row = -(-steps // memory.page_size)
    return batch * pages_per_row * memory.page_size


def under_stress(state: State, patience: float) -> bool:
    """True if a stream has to wait for memory, or soon will, and readers follow some of them.

    Stress is: a stream is paused or draining; the engine's own policy has passed over a
    waiting stream for more than `patience` seconds; the waiting prompts do not all fit
    beside ten per cent free; or running streams have used the memory up to that.
    """
    streams, memory = state.streams, state.memory
    if not streams.streaming.any():
        return False
    if streams.draining.any() or streams.away.any():
        return True
    spare = memory.device_free - memory.device_promised - LOW_SHARE * memory.device_total
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
