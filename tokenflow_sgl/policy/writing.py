"""Whose KV is copied to the host ahead of a preemption (TokenFlow section 5; see `offload`)."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.offload import CHUNK, MOST, Write, plan_writes
from tokenflow_sgl.policy.decision import Preemption
from tokenflow_sgl.policy.state import State


def written_ahead(state: State, preempt: tuple[Preemption, ...]) -> tuple[Write, ...]:
    """What is left of those who are preempted now, and what the link takes of the others.

    A preempted stream drains for a step while its last result is in flight: what is asked for now
    is copied by then, and only what that step computed is left. Of many victims those with the most
    left come first, up to `MOST`: the others' tails are copied when they are released.
    """
    if not state.memory.host_total:
        return ()
    streams, page = state.streams, state.memory.page_size
    unwritten = streams.unwritten
    last: tuple[Write, ...] = ()
    if preempt:
        leaving = sorted(streams.index_of[p.slot] for p in preempt)
        tails = zip(streams.slot[leaving].tolist(), unwritten[leaving].tolist(), strict=True)
        whole = [Write(slot, tokens // page * page) for slot, tokens in tails if tokens >= page]
        last = tuple(sorted(whole, key=lambda write: -write.tokens)[:MOST])
    # First what few streams are due at all: this runs in every pass.
    due = np.nonzero(unwritten >= max(CHUNK, page))[0]
    if preempt:
        due = due[~np.isin(due, leaving)]
    slack = streams.next_due[due] - state.now
    # Who is about to run dry is not preempted.
    running = streams.running
    able = running[due] & streams.preemptible[due] & (slack > 0.0)
    if len(last) == MOST or not able.any():
        return last
    length = streams.length[running]
    step = state.costs.decode_seconds(len(length), float(length.sum()))
    return last + plan_writes(
        streams.slot[due[able]],
        unwritten[due[able]],
        slack[able],
        state.links.store.behind(sum(write.tokens for write in last)),
        seconds=step,
        page=page,
        running=len(length),
        most=MOST - len(last),
    )
