"""When to step in: the predicates that keep the policy away from a server that needs none."""

from __future__ import annotations

from tokenflow_sgl.contract import State
from tokenflow_sgl.contract.needs import NOTHING, leaves, prompts
from tokenflow_sgl.policy.urgency import reader_runs_dry

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
        patience: Seconds; below 0: none may wait at all.
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
    if passed_over(state, patience):
        return True
    return not leaves(memory, prompts(memory, streams, waiting), LOW_SHARE)


def passed_over(state: State, patience: float) -> bool:
    """True if the engine's own policy has left a stream waiting for more than `patience` seconds.

    It keeps memory for the limits of all answers, so it may do so while much is free.
    """
    first, _ = state.streams.standing.waits_since
    return state.now - first > patience


def prefills_stall_readers(state: State) -> bool:
    """True if a reader would run out of text during the prefills that are to come.

    SGLang computes all prompts that wait, chunk by chunk, before the next decode step. While memory
    is free that is right for newcomers, and for the others as long as what they have unread lasts.
    """
    costs, promised = state.costs, state.memory.kv.promised
    waiting = state.streams.waiting_index
    if not (len(waiting) or promised) or costs.prefill is None:
        return False
    seconds = float(state.prefill_seconds.sum()) + state.decode_seconds
    if promised:
        seconds += costs.prefill_seconds(promised)
    return reader_runs_dry(state, seconds) or _first_texts_wait(state, seconds)


def _first_texts_wait(state: State, seconds: float) -> bool:
    """Whether what is computed just now has readers who get the next token after so long.

    SGLang composes a step while the last one is computed: whose prefill ends there has no text yet,
    and will have read its first token before the next step ends.
    """
    streams = state.streams
    begun = streams.read_index
    begun = begun[streams.generated.take(begun) == 0]
    # One of them is in the middle of its prefill.
    if len(begun) <= int(state.memory.kv.promised > 0):
        return False
    return seconds * float(streams.rate.take(begun).max()) > 1.0
