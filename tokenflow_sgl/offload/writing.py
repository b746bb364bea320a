"""Write-through of running streams: their KV goes to the host while they still decode.

TokenFlow (EuroSys'26) section 5: a stream whose KV is on the host already is preempted at the cost
of its tail, not of its context. Copies are bounded by what the link takes beside the next step,
and go first to whose buffer is the fullest, since these are preempted first ("priority-based
write", section 5.1). A copy is never smaller than `CHUNK`: each one makes a node of the prefix
tree, and a launch on the link.

Each one also takes the scheduler's thread about half a millisecond, in which no step is launched.
So there are at most `MOST` of them in a pass, and where many streams decode together each is copied
in larger pieces, that all get their turn. A count and not a time: every tensor-parallel rank must
come to the same copies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.costs import Link

CHUNK = 64
"""Tokens of a copy at least: 8 MiB of an 8B model's KV, and 31 nodes for 2,000 tokens."""

MOST = 2
"""Copies in a pass. Of 200 streams that decode together each is written every hundred tokens."""


@dataclass(frozen=True, slots=True)
class Write:
    """Copy the next `tokens` (whole pages) of the stream in `slot` to the host."""

    slot: int
    tokens: int


def plan_writes(
    slot: NDArray[np.int64],
    unwritten: NDArray[np.int64],
    slack: NDArray[np.float64],
    link: Link,
    *,
    seconds: float,
    page: int,
    running: int,
    most: int = MOST,
) -> tuple[Write, ...]:
    """What the link can take to the host while the next step runs.

    Args:
        slot: Running streams that may be preempted, shape (n,).
        unwritten: Tokens of each whose KV is computed and not on the host, shape (n,).
        slack: Seconds until each one's reader runs dry, shape (n,); the largest is written first.
        link: From device to host. While its rate is unknown, one copy at a time measures it.
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
    chosen: list[Write] = []
    for index in order[:most].tolist():
        tokens = min(int(pages[index]), int(room) // page * page)
        if tokens < least:
            break
        chosen.append(Write(int(slot[index]), tokens))
        room -= tokens
    return tuple(chosen)
