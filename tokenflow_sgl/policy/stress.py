"""When to step in: the predicate that keeps the policy away from a server with free memory."""

from __future__ import annotations

from tokenflow_sgl.contract import State
from tokenflow_sgl.contract.needs import NOTHING, leaves, prompts

LOW_SHARE = 0.10
"""Below this share of free device memory the policy decides."""


def under_stress(state: State, patience: float, decided: bool = False) -> bool:
    """True if a stream has to wait for memory, or soon will, and readers follow some of them.

    Stress is: a stream is paused or draining; the engine's own policy has passed over a
    waiting stream for more than `patience` seconds; the waiting prompts do not all fit
    beside ten per cent free; or running streams have used the memory up to that. It lasts until
    a prefill under way has ended: the engine's own policy would compute the rest in one step, and
    let the readers wait whose streams the policy has kept just ahead of them.

    Args:
        state: As it is.
        patience: Seconds.
        decided: The policy decided in the pass before.
    """
    streams, memory = state.streams, state.memory
    if not streams.streaming.any():
        return False
    standing = streams.standing
    if standing.some_in_no_batch:
        return True
    waiting = standing.waiting_index
    count = len(waiting)
    if not count:
        return (decided and memory.kv.promised > 0) or not leaves(memory, NOTHING, LOW_SHARE)
    if len(standing.running_index) + count > memory.max_running:
        return True
    first, _ = standing.waits_since
    if state.now - first > patience:
        return True
    return not leaves(memory, prompts(memory, streams, waiting), LOW_SHARE)
