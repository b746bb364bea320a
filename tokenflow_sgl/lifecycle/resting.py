"""Streams whose readers have looked away: they do not run until the reader is back.

One rule around every policy, so that no policy has to know of readers that read nothing.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tokenflow_sgl.contract import Cause, Decision, Mode, Policy, Preempt, State

AS_IF_AHEAD = 3600.0
"""Seconds of unread text that the policy takes a resting stream to have, which still runs."""
CHECK_SECONDS = 1.0
"""While all streams rest: how long nothing changes unless something happens."""


def decide(policy: Policy, state: State) -> Decision:
    """The policy's decision about the streams that are read or wait, and rest for the others.

    The policy does not see resting streams that are in no batch. Those that run (they drain in this
    pass, or cannot be preempted now) are for it streams that are far ahead, because their memory
    and their rows are taken.
    """
    streams = state.streams
    if streams.resting is None or not streams.resting.any():
        return policy.decide(state)
    resting = streams.resting
    runs = streams.running | streams.draining
    seen = streams.among(np.nonzero(~resting | runs)[0])
    assert seen.resting is not None, "it was there before the choice"
    ahead = np.where(seen.resting, state.now + AS_IF_AHEAD, seen.next_due)
    seen = dataclasses.replace(seen, next_due=ahead, resting=None)
    decision = policy.decide(dataclasses.replace(state, streams=seen))
    rests = resting & streams.running & streams.preemptible
    gone = {preemption.slot for preemption in decision.preempt}
    slots = [slot for slot in streams.slot[rests].tolist() if slot not in gone]
    preempt = tuple(Preempt(slot, Cause.REST) for slot in slots)
    run, admit = decision.run, decision.admit
    if decision.mode is Mode.IDLE or not (run or runs.any() or decision.until is not None):
        # The body would offer every stream to admission: it is told the others, in its order.
        awake = np.concatenate(
            [streams.slot[~resting & streams.paused], streams.slot[~resting & streams.waiting]]
        )
        run = admit = tuple(awake.tolist())
    until = decision.until
    if not run and until is None:
        until = state.now + CHECK_SECONDS
    return dataclasses.replace(
        decision,
        mode=Mode.WORKING_SET,
        admit=admit,
        preempt=(*preempt, *decision.preempt),
        run=run,
        until=until,
    )
