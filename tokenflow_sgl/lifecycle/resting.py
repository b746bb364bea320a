"""Streams whose readers have looked away: they do not run until the reader is back.

One rule around every policy, so that no policy has to know of readers that read nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tokenflow_sgl.contract import (
    BoolArray,
    Cause,
    Decision,
    Memory,
    Policy,
    Preempt,
    State,
    Streams,
)
from tokenflow_sgl.contract.needs import windows
from tokenflow_sgl.lifecycle.well_formed import well_formed

AS_IF_AHEAD = 3600.0
"""Seconds of unread text that the policy takes a resting stream to have, which still runs."""


def hidden(state: State) -> frozenset[int]:
    """Slots of the resting streams: admission does not see them."""
    resting = state.streams.resting
    return frozenset() if resting is None else frozenset(state.streams.slot[resting].tolist())


def rests(state: State) -> tuple[Preempt, ...]:
    """The resting streams that run and can leave their batch do so, whatever the policy says."""
    streams = state.streams
    if streams.resting is None:
        return ()
    leave = streams.slot[streams.resting & streams.running & streams.preemptible]
    return tuple(Preempt(slot, Cause.REST) for slot in leave.tolist())


def decide(policy: Policy, state: State) -> Decision:
    """The policy's decision about the streams that are read or wait, and rest for the others.

    The policy does not see resting streams that are in no batch, nor the host memory that they will
    have come to need. Those that run (they drain in this pass, or cannot be preempted now) are for
    it streams that are far ahead, because their memory and their rows are taken.
    """
    streams = state.streams
    if streams.resting is None or not streams.resting.any():
        return well_formed(policy.decide(state))
    resting = streams.resting
    away = resting & ~(streams.running | streams.draining)
    seen = streams.among(np.nonzero(~away)[0])
    assert seen.resting is not None, "it was there before the choice"
    ahead = np.where(seen.resting, state.now + AS_IF_AHEAD, seen.next_due)
    seen = dataclasses.replace(seen, next_due=ahead, resting=None)
    memory = _without(state.memory, streams, away & ~streams.waiting)
    decision = well_formed(policy.decide(dataclasses.replace(state, streams=seen, memory=memory)))
    gone = {preemption.slot for preemption in decision.preempt}
    preempt = [each for each in rests(state) if each.slot not in gone]
    return dataclasses.replace(
        decision, preempt=(*preempt, *decision.preempt), hidden=hidden(state)
    )


def _without(memory: Memory, streams: Streams, away: BoolArray) -> Memory:
    """The memory less what these streams will have come to need of the host's.

    Where the host has less than that, its total is negative: the rest is the device's.
    """
    index = np.nonzero(away)[0]
    final = streams.prompt[away] + streams.expected_of(index)
    shared = 0 if streams.shared is None else int(streams.shared[away].sum())
    gone = round(float(final.sum())) - shared, int(windows(memory, final).sum()), len(final)
    host = memory.host
    kv, window, states = (
        dataclasses.replace(pool, total=pool.total - taken)
        for pool, taken in zip((host.kv, host.window, host.state), gone, strict=True)
    )
    left = dataclasses.replace(host, kv=kv, window=window, state=states)
    return dataclasses.replace(memory, host=left)
