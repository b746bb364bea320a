"""Whose KV is loaded within the next step, and whose beside several (TokenFlow 5, FastSwitch 3).

A load within a step overlaps with its computing, layer by layer; everybody in the step waits for
what it cannot hide. A load beside the steps holds nobody up, but the stream comes later, and its
memory serves nobody meanwhile. So short loads go the first way and long ones the second: the
adaptive swap-in of FastSwitch (section 3.2), by the step's length instead of by a ratio.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tokenflow_sgl.policy.state import State


def hidden_loads(
    state: State, planned: tuple[int, ...], recompute: Collection[int], *, ahead: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(Slots to run in the next step, slots to load beside the steps), both in their order.

    Args:
        state: As it is.
        planned: Slots that should run, most urgent first.
        recompute: Those whose KV is computed, not loaded.
        ahead: Loads beside the steps are allowed. Without, the first load is in the step however
            long it takes, and the others wait for later ones.
    """
    if not planned:
        return (), ()
    streams, costs = state.streams, state.costs
    running = streams.running
    length = streams.length
    hidden = np.inf  # where nobody runs, nobody waits
    if costs.decode is not None and running.any():
        rows = int(np.count_nonzero(running))
        hidden = costs.decode_seconds(rows, float(length[running].sum()))
    away = streams.paused & ~streams.ready
    run: list[int] = []
    load: list[int] = []
    first = True
    for slot in planned:
        index = streams.index_of.get(slot)  # none: it has ended since it was planned
        if index is not None and streams.loading[index]:
            continue
        if index is not None and away[index] and slot not in recompute:
            seconds = load_seconds(state, int(length[index]))
            if seconds > hidden and (ahead or not first):
                load.append(slot)
                continue
            first = False
            hidden -= seconds
        run.append(slot)
    return tuple(run), tuple(load) if ahead else ()


def load_seconds(state: State, tokens: int) -> float:
    """What a load takes: as steps have waited for loads, or as the link is; 0.0 unknown."""
    if state.costs.load is None and state.links.load.rate > 0.0:
        return tokens / state.links.load.rate
    return state.costs.load_seconds(tokens)
