"""How the KV of paused streams comes back: recomputed, loaded within the next step, or prefetched.

TokenFlow section 5, FastSwitch section 3. A load within a step overlaps with its computation, layer
by layer; every stream of the step waits for the part that does not fit under it. A prefetch delays
no step, but the stream resumes later, and its memory serves no stream meanwhile. So short loads go
the first way and long ones the second: the adaptive swap-in of FastSwitch (section 3.2), by the
step's length instead of by a ratio. How much of a prefetch is loaded when: see `chunks`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tokenflow_sgl.contract import IntArray, Restore, State, Way, When
from tokenflow_sgl.offload.chunks import LEAST_PART


def restore(
    state: State,
    planned: IntArray,
    recompute: Collection[int],
    *,
    ahead: bool,
    chunks: bool = False,
) -> tuple[tuple[int, ...], tuple[Restore, ...]]:
    """(Slots to run in the next step, how KV comes back where not by a load in that step).

    Args:
        state: As it is.
        planned: Streams that should run, most urgent first, as indices.
        recompute: Slots of those whose KV is computed, not loaded.
        ahead: Prefetches are allowed. Without, the first load is in the step however long it takes,
            and the others wait for later ones.
        chunks: Prefetches are loaded part by part, as memory becomes free.
    """
    if not state.streams.paused_or_loading.take(planned).any():
        return tuple(state.streams.slot.take(planned).tolist()), ()
    run, load = _split(state, planned, recompute, ahead=ahead)
    restores = []
    if recompute:
        slots = state.streams.slot.take(planned).tolist()
        restores = [Restore(slot, Way.RECOMPUTE) for slot in slots if slot in recompute]
    if load:
        part = _part(state) if chunks else 0
        restores += [Restore(slot, Way.LOAD, When.AHEAD, part=part) for slot in load]
    return run, tuple(restores)


def dearer_to_load(state: State, run: IntArray) -> tuple[int, ...]:
    """Slots of paused streams to recompute: cheaper to compute than to load, and done sooner.

    Loads queue on the link, prefills on the device; each stream takes the queue in which it is done
    first. A stream that is dearer to compute than to load is always loaded: computing delays every
    stream, a load only those in its step. The first stream is loaded too, or nothing would ever
    correct a load that was once measured too dear.

    Args:
        state: As it is.
        run: Streams that are to start or resume, as indices.
    """
    streams, costs = state.streams, state.costs
    if costs.load is None or costs.prefill is None:
        return ()
    index = run[streams.paused.take(run)]
    if not len(index):
        return ()
    tokens = streams.own.take(index).astype(np.float64)
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
    state: State, index: IntArray, recompute: Collection[int], *, ahead: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(Slots to run in the next step, slots to prefetch), both in their order."""
    streams = state.streams
    overlapped = np.inf  # where no stream runs, none waits
    if state.costs.decode is not None and len(streams.running_index):
        overlapped = state.decode_seconds
        if state.memory.ahead and state.costs.prefill is not None:
            # Rows that verify drafts are not in that step: it is a short one.
            overlapped = float(state.costs.prefill_seconds(1.0))
    some_load = bool(len(streams.standing.loading_index))
    if some_load:
        # What is on its way as a whole needs nothing.
        index = index[~(streams.loading.take(index) & ~streams.partly_loaded.take(index))]
    offloaded = streams.paused.take(index) & ~streams.ready.take(index)
    tokens = streams.own.take(index)
    if some_load and streams.to_load is not None:
        partly = streams.partly_loaded.take(index)
        offloaded |= partly
        tokens = np.where(partly, streams.to_load.take(index), tokens)
    slots: list[int] = streams.slot.take(index).tolist()
    if not offloaded.any():
        return tuple(slots), ()
    seconds_of_each = state.load_seconds(tokens.astype(np.float64)).tolist()
    run: list[int] = []
    load: list[int] = []
    first = True
    for slot, is_offloaded, seconds in zip(slots, offloaded.tolist(), seconds_of_each, strict=True):
        if is_offloaded and slot not in recompute:
            if seconds > overlapped and (ahead or not first):
                load.append(slot)
                continue
            first = False
            overlapped -= seconds
        run.append(slot)
    return tuple(run), tuple(load) if ahead else ()


def _part(state: State) -> int:
    """Tokens of the smallest chunk: what is loaded during a step, after which comes the next one.

    Smaller ones would leave the link idle for a part of each step.
    """
    of_each = float(state.load_seconds(np.array([float(LEAST_PART)]))[0]) / LEAST_PART
    return max(LEAST_PART, int(state.decode_seconds / of_each)) if of_each > 0.0 else LEAST_PART
