"""Reading pace while there is room for all streams: no tokens come long before they are read.

Without stress the engine would decode every stream as fast as it can, and most tokens would lie
unread. With pacing a stream decodes a stretch of its answer, rests in the prefix tree until its
reader has nearly caught up, and goes on: the batch of each step is small, newcomers get the time
that is left over, and a reader who goes away has cost little. Every rest costs a switch: one token
of prefill and the copy of the new KV to the host. So it is an option, not the rule.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import Cause, Decision, FloatArray, IntArray, Mode, Preempt, State
from tokenflow_sgl.contract.needs import holds, occupied
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.queueing import first_of
from tokenflow_sgl.policy.stress import LOW_SHARE

LOW_SECONDS = 0.3
"""Unread seconds at which a resting stream goes on: what a resume may have to wait for."""
STRETCH = 8.0
"""Tokens that a stream decodes at a time, at least."""


def room_for_all(state: State) -> bool:
    """Whether every stream could run at once with ten per cent of the memory to spare."""
    streams, memory = state.streams, state.memory
    whole = occupied(memory, streams, np.arange(len(streams)))
    return len(streams) <= memory.max_running and holds(memory, whole, 1.0 - LOW_SHARE)


def paced(state: State, config: WorkingSetConfig, keys: FloatArray) -> tuple[Decision, IntArray]:
    """Start what waits, rest streams that are ahead, resume those with readers close behind.

    Args:
        state: As it is.
        config: Parameters of the policy.
        keys: By which the streams that wait are sorted, see `queueing.queue_keys`.

    Returns:
        The decision, and the indices of what starts or resumes.
    """
    streams = state.streams
    slack = state.slack
    left = streams.left
    stretch = np.maximum(config.band * streams.expected, STRETCH) / streams.rate
    running = streams.running & (streams.generated > 0)
    ahead = running & streams.preemptible & (slack >= LOW_SECONDS + stretch) & (left > STRETCH)
    low = streams.paused & (slack <= LOW_SECONDS)
    low_index = np.nonzero(low)[0]
    low_index = low_index[np.argsort(slack[low_index], kind="stable")]
    waiting = streams.waiting
    starts = np.concatenate([first_of(streams.waiting_index, keys, None), low_index])
    run = tuple(streams.slot[starts].tolist())
    decision = Decision(
        Mode.WORKING_SET,
        admit=tuple(streams.slot[waiting & ~streams.admitted].tolist()),
        preempt=tuple(Preempt(slot, Cause.PARK) for slot in streams.slot[ahead].tolist()),
        run=run,
        until=state.now if run else _next_change(state, slack, stretch),
    )
    return decision, starts


def _next_change(state: State, slack: FloatArray, stretch: FloatArray) -> float:
    """When the next stream will be ahead, or have nearly caught up."""
    streams = state.streams
    running, paused = streams.running, streams.paused
    moments = [state.now + 1.0]
    if running.any():
        context = float(streams.length[running].sum())
        step = state.costs.token_seconds(int(np.count_nonzero(running)), context)
        # In that time each gets a token, and its reader reads on meanwhile.
        gain = 1.0 / streams.rate[running] - step
        steps = (LOW_SECONDS + stretch[running] - slack[running]) / np.maximum(gain, 1e-9)
        moments.append(state.now + max(float(steps.min()), 0.0) * step)
    if paused.any():
        moments.append(state.now + max(float(slack[paused].min()) - LOW_SECONDS, 0.0))
    return min(moments)
