"""Write-through of running streams: their KV is copied to the host while they still decode.

TokenFlow (EuroSys'26) section 5: a stream whose KV is on the host already is preempted at the cost
of its tail, not of its context. Copies are bounded by what the link takes during the next step.
The stream with the largest slack is written first, since it is preempted first ("priority-based
write", section 5.1). A copy is never smaller than `CHUNK`: each one makes a node of the prefix
tree, and a launch on the link.

Each copy also takes the scheduler's thread about half a millisecond, in which no step is launched.
So a pass starts at most `MOST` of them. Where many streams decode together, each is copied in
larger pieces, so that every stream gets its turn. The limit is a count and not a time: every
tensor-parallel rank must come to the same copies.

Where the host does not keep copies of what is on the device (`Memory.mirrored`), a copy of a
running stream that finds no free memory there makes another one go, which is of no use. Then only
what is preempted is copied.
"""

from __future__ import annotations

import math

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, Preempt, State, Write
from tokenflow_sgl.costs import MeasuredLink

CHUNK = 64
"""Tokens of a copy at least: 8 MiB of an 8B model's KV, and 31 nodes for 2,000 tokens."""

MOST = 2
"""Copies in a pass. Of 200 streams that decode together each is written every hundred tokens."""


def proactive_writes(state: State, preempt: tuple[Preempt, ...]) -> tuple[Write, ...]:
    """Copies to start in this pass: first the rest of what is preempted, then what the link takes.

    A preempted stream drains for a step while its last result is in flight: a copy started now has
    ended by then, and only what that step computed is left. Of many preempted streams those with
    the most left come first, up to `MOST`: the others' tails are copied when they are released.

    Args:
        state: As it is.
        preempt: Streams that are preempted in this pass.
    """
    streams, page = state.streams, state.memory.page_size
    unwritten = streams.unwritten
    if state.memory.host.kv.total <= 0 or not unwritten.any():
        return ()
    last: tuple[Write, ...] = ()
    # First those few streams that have enough to write at all: this runs in every pass.
    enough = unwritten >= max(CHUNK, page)
    if preempt:
        leaving = np.sort(streams.find([p.slot for p in preempt]))
        last = _tails(streams.slot.take(leaving), unwritten.take(leaving), page)
        enough[leaving] = False
    due = enough.nonzero()[0]
    if len(last) == MOST or not len(due):
        return last
    slack = state.slack.take(due)
    # A stream whose reader is about to stall is not preempted.
    able = streams.running.take(due) & streams.preemptible.take(due) & (slack > 0.0)
    if not able.any():
        return last
    due = due[able]
    return last + plan_writes(
        streams.slot.take(due),
        unwritten.take(due),
        slack[able],
        state.links.store.behind(ahead := sum(write.tokens for write in last)),
        host=math.inf if state.memory.mirrored else state.memory.host.kv.free - ahead,
        seconds=state.decode_seconds,
        page=page,
        running=len(streams.running_index),
        most=MOST - len(last),
    )


def _tails(slot: IntArray, unwritten: IntArray, page: int) -> tuple[Write, ...]:
    """The rest of the preempted streams with the most left, up to `MOST`."""
    pages = unwritten // page * page
    most = np.argsort(-pages, kind="stable")[:MOST]
    rest = zip(slot.take(most).tolist(), pages.take(most).tolist(), strict=True)
    return tuple(Write(*each) for each in rest if each[1])


def plan_writes(
    slot: IntArray,
    unwritten: IntArray,
    slack: FloatArray,
    link: MeasuredLink,
    *,
    host: float = math.inf,
    seconds: float,
    page: int,
    running: int,
    most: int = MOST,
) -> tuple[Write, ...]:
    """What the link can copy to the host during the next step.

    Args:
        slot: Running streams that may be preempted, shape (n,).
        unwritten: Tokens of each whose KV is computed and not on the host, shape (n,).
        slack: Seconds until each reader runs out of text, shape (n,); the largest is written first.
        link: From device to host. While its rate is unknown, one copy at a time measures it.
        host: Tokens that the host has room for.
        seconds: Length of the next step.
        page: Tokens per page.
        running: Streams that decode together, each a token per pass.
        most: Copies at most.

    Returns:
        Writes in their order, each of whole pages.
    """
    pages = unwritten // page * page
    least = max(CHUNK, page)
    due = np.nonzero(pages >= max(least, math.ceil(running / MOST)))[0]
    order = due[np.argsort(-slack[due], kind="stable")]
    room = link.room(seconds)
    if np.isnan(room):
        room = 0.0 if link.queued else float(least)
    room = min(room, host)
    chosen: list[Write] = []
    for index in order[:most].tolist():
        tokens = min(int(pages[index]), int(room) // page * page)
        if tokens < least:
            break
        chosen.append(Write(int(slot[index]), tokens))
        room -= tokens
    return tuple(chosen)
