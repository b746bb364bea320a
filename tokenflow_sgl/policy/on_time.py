"""Which newcomers can have their first token in time, and how these are sorted.

A reader waits for a first token without minding it for about two seconds, or for the objective that
the request states. Shortest first makes long prompts miss that which could have met it, one
after the other while short ones keep coming; first come first served makes all miss it as soon as
one does. So of those that wait the most that can be in time are chosen (J. M. Moore, 1968: by their
deadlines, and whenever one would be late the longest of them is left out), and the shortest of
these goes first as far as none of them is late for it (W. E. Smith, 1956: from the end, the longest
whose deadline is not before the end of all the rest). Those that are late anyway wait meanwhile, so
one that holds them all up for longer than the deadline, in sum, is not chosen.
"""

from __future__ import annotations

import heapq

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, State
from tokenflow_sgl.policy.urgency import differing_weights

FAIR_SHARE = 2.0
"""Time of prompts in a mixed step that newcomers get at least, over all the rest of it, where the
step's readers hardly notice. With shorter chunks a prompt pays for the weights and the rows more
often than for itself."""
IN_TIME = 2.0
"""Seconds within which a first token is in time where the request has no objective."""
BESIDE = 1.0 + 1.0 / FAIR_SHARE
"""Times its own engine time that a prefill takes, beside readers that go on."""
MOST = 256
"""Requests that are looked at, the shortest of them: each takes a millisecond at least."""


def in_time(state: State, arrival: FloatArray) -> IntArray:
    """Newcomers that can be in time, in their order, as places of `streams.waiting_index`.

    Empty where the costs are not known, or where weights say who goes first.

    Args:
        state: As it is.
        arrival: When each of those that wait came, shape (w,).
    """
    streams, costs = state.streams, state.costs
    none = np.zeros(0, dtype=np.int64)
    index = streams.waiting_index
    if costs.prefill is None:
        return none
    within: FloatArray | float = IN_TIME
    if streams.ttft_slo is not None:
        own = streams.ttft_slo.take(index)
        within = np.where(np.isnan(own), IN_TIME, own)
    waited = state.now - arrival
    left = np.asarray(within - waited)
    # Where all are late, as in a long queue, nothing else is looked at.
    if not (left > 0.0).any() or differing_weights(streams, index) is not None:
        return none
    seconds = BESIDE * state.prefill_seconds
    if state.memory.kv.promised:
        left = left - BESIDE * float(costs.prefill_seconds(state.memory.kv.promised))
    can = seconds <= left
    if streams.tolerance is not None:
        can &= waited >= streams.tolerance.take(index)
    places = np.nonzero(can)[0]
    if len(places) > MOST:
        places = np.sort(places[np.argpartition(seconds[places], MOST)[:MOST]])
    chosen = most_in_time(seconds[places].tolist(), left[places].tolist())
    late = len(index) - len(chosen)
    found = places[np.array(chosen, dtype=np.int64)]
    limits = np.broadcast_to(within, len(index))
    return np.asarray(found[_bearable(seconds[found], late, limits[found])])


def goes_first(seconds: FloatArray, late: int) -> BoolArray:
    """Which newcomers go before so many who are late: those that can be in time if alone.

    seconds: Of their prefills.
    """
    return _bearable(BESIDE * seconds, late, IN_TIME) & (BESIDE * seconds <= IN_TIME)


def _bearable(seconds: FloatArray, late: int, limits: FloatArray | float) -> BoolArray:
    """Whether so many who are late wait for no longer than that, in sum, meanwhile."""
    return np.asarray(late * seconds <= limits)


def most_in_time(seconds: list[float], left: list[float]) -> list[int]:
    """The most jobs that can end in time, one after the other; the order with the least mean wait.

    Of jobs that are alike the first ones go first.

    Args:
        seconds: That each takes.
        left: Seconds until each must have ended.
    """
    chosen: list[tuple[float, int]] = []
    total = 0.0
    for job in sorted(range(len(left)), key=left.__getitem__):
        heapq.heappush(chosen, (-seconds[job], -job))
        total += seconds[job]
        if total > left[job]:
            total += heapq.heappop(chosen)[0]
    ahead = sorted(sorted(-job for _, job in chosen), key=left.__getitem__)
    order: list[int] = []
    last: list[tuple[float, int]] = []
    total = sum(seconds[job] for job in ahead)
    while ahead or last:
        # A sum in another order may be a little more; the last one ends in time anyway.
        while ahead and (left[ahead[-1]] >= total or not last):
            job = ahead.pop()
            heapq.heappush(last, (-seconds[job], -job))
        taken, job = heapq.heappop(last)
        order.append(-job)
        total += taken
    return order[::-1]
