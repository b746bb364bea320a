"""How the KV of paused streams comes back: recomputed, loaded within the next step, or prefetched.

TokenFlow section 5, FastSwitch section 3. A load within a step overlaps with its computation, layer
by layer; every stream of the step waits for the part that does not fit under it. A prefetch delays
no step, but the stream resumes later, and its memory serves no stream meanwhile. So short loads go
the first way and long ones the second: the adaptive swap-in of FastSwitch (section 3.2), by the
step's length instead of by a ratio.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tokenflow_sgl.contract import FloatArray, Restore, State, Way, When
from tokenflow_sgl.contract.reserve import headroom


def restore(
    state: State, planned: tuple[int, ...], recompute: Collection[int], *, ahead: bool
) -> tuple[tuple[int, ...], tuple[Restore, ...]]:
    """(Slots to run in the next step, how KV comes back where not by a load in that step).

    Args:
        state: As it is.
        planned: Slots that should run, most urgent first.
        recompute: Those whose KV is computed, not loaded.
        ahead: Prefetches are allowed. Without, the first load is in the step however long it takes,
            and the others wait for later ones.
    """
    computed = tuple(Restore(slot, Way.RECOMPUTE) for slot in planned if slot in recompute)
    run, load = _split(state, planned, recompute, ahead=ahead)
    return run, computed + tuple(Restore(slot, Way.LOAD, When.AHEAD) for slot in load)


def dearer_to_load(state: State, run: tuple[int, ...]) -> tuple[int, ...]:
    """Slots of paused streams to recompute: cheaper to compute than to load, and done sooner.

    Loads queue on the link, prefills on the device; each stream takes the queue in which it is done
    first. A stream that is dearer to compute than to load is always loaded: computing delays every
    stream, a load only those in its step. The first stream is loaded too, or nothing would ever
    correct a load that was once measured too dear.

    Args:
        state: As it is.
        run: Slots that are to start or resume, all of them in the state.
    """
    streams, costs = state.streams, state.costs
    if costs.load is None or costs.prefill is None or not run:
        return ()
    index = streams.find(run)
    index = index[streams.paused[index]]
    tokens = streams.length[index].astype(np.float64)
    of_each = zip(
        streams.slot[index].tolist(),
        costs.load_seconds(tokens).tolist(),
        costs.prefill_seconds(tokens).tolist(),
        strict=True,
    )
    loads = prefills = 0.0
    chosen: list[int] = []
    for slot, load, prefill in of_each:
        if loads > 0.0 and prefill < load and prefills + prefill < loads + load:
            chosen.append(slot)
            prefills += prefill
        else:
            loads += load
    return tuple(chosen)


def _split(
    state: State, planned: tuple[int, ...], recompute: Collection[int], *, ahead: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(Slots to run in the next step, slots to prefetch), both in their order."""
    if not planned:
        return (), ()
    streams = state.streams
    overlapped = np.inf  # where no stream runs, none waits
    if state.costs.decode is not None and len(streams.running_index):
        overlapped = state.decode_seconds
    index = streams.find(planned)
    here = index >= 0  # the others have ended since they were planned
    loading = here & streams.loading[index]
    offloaded = here & streams.paused[index] & ~streams.ready[index]
    of_each = zip(
        planned,
        loading.tolist(),
        offloaded.tolist(),
        load_seconds(state, streams.length[index].astype(np.float64)).tolist(),
        strict=True,
    )
    run: list[int] = []
    load: list[int] = []
    first = True
    for slot, loads, is_offloaded, seconds in of_each:
        if loads:
            continue
        if is_offloaded and slot not in recompute:
            if seconds > overlapped and (ahead or not first):
                load.append(slot)
                continue
            first = False
            overlapped -= seconds
        run.append(slot)
    return tuple(run), tuple(load) if ahead else ()


def prefetch_room(free: int, promised: int, running: int, page_size: int) -> int:
    """Tokens that a prefetch may take: beside it running streams need memory to decode on.

    Args:
        free: Tokens of device KV that can be allocated.
        promised: Tokens that the prefill under way still needs.
        running: Streams that compute, or are about to.
        page_size: Tokens per page.
    """
    return free - promised - (running + 1) * headroom(page_size)


def load_seconds(state: State, tokens: FloatArray) -> FloatArray:
    """Seconds of each load: as steps have waited for loads, or by the link's rate; 0.0 unknown."""
    if state.costs.load is None and state.links.load.rate > 0.0:
        return tokens / state.links.load.rate
    return state.costs.load_seconds(tokens)
