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
from tokenflow_sgl.policy.mixed_steps import elapsed_per_second
from tokenflow_sgl.policy.urgency import differing_weights

IN_TIME = 2.0
"""Seconds within which a first token is in time where the request has no objective."""
BEFORE = 0.75
"""Part of that in which steps are to be so long that a prefill is done: others will come."""
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
    waited = state.now - arrival
    within = _within(state, index)
    left = within - waited
    # Where all are late, as in a long queue, nothing else is looked at.
    if not (left > 0.0).any() or differing_weights(streams, index) is not None:
        return none
    elapsed = elapsed_per_second(state)
    seconds = elapsed * state.prefill_seconds
    if state.memory.kv.promised:
        left = left - elapsed * float(costs.prefill_seconds(state.memory.kv.promised))
    can = seconds <= left
    if streams.tolerance is not None:
        can &= waited >= streams.tolerance.take(index)
    places = np.nonzero(can)[0]
    if len(places) > MOST:
        places = np.sort(places[np.argpartition(seconds[places], MOST)[:MOST]])
    chosen = most_in_time(seconds[places].tolist(), left[places].tolist())
    late = len(index) - len(chosen)
    found = places[np.array(chosen, dtype=np.int64)]
    return np.asarray(found[_bearable(seconds[found], late, within[found])])


def share_needed(state: State, run: IntArray, begun: IntArray) -> float:
    """Share of the engine's time that prefills need so that newcomers are in time, up to 1.0.

    The largest density of work before a deadline, as where the speed of a processor follows from
    deadlines (F. Yao, A. Demers, S. Shenker, 1995). 0.0 where none can be in time.

    Args:
        state: As it is; the costs of prefills are known.
        run: Streams that are to start or resume, as indices; those that wait for memory are not
            sooner for longer steps.
        begun: Streams whose prefills are under way, as indices.
    """
    streams, promised = state.streams, state.memory.kv.promised
    fresh = run[streams.waiting.take(run)]
    concerned = np.concatenate((begun, fresh))
    left = BEFORE * _within(state, concerned) - (state.now - streams.arrival.take(concerned))
    # Under overload nearly all are late.
    if not (left > 0.0).any():
        return 0.0
    under_way = float(state.costs.prefill_seconds(promised)) if promised else 0.0
    until, left = left[: len(begun)], left[len(begun) :]
    needed = under_way / float(until.max()) if (until > 0.0).any() else 0.0
    soon = left > 0.0
    if soon.any():
        left, seconds = left[soon], state.prefill_seconds_of(fresh[soon])
        can = seconds + under_way <= left
        order = np.argsort(left[can], kind="stable")
        work = under_way + seconds[can][order].cumsum()
        needed = max(needed, float((work / left[can][order]).max(initial=0.0)))
    return min(needed, 1.0)


def _within(state: State, index: IntArray) -> FloatArray:
    """Seconds after its arrival within which each has its first token in time."""
    objective = state.streams.ttft_slo
    if objective is None:
        return np.full(len(index), IN_TIME)
    own = objective.take(index)
    return np.where(np.isnan(own), IN_TIME, own)


def goes_first(state: State, seconds: FloatArray, late: int) -> BoolArray:
    """Which newcomers would go before so many who are late: those that are in time if alone.

    seconds: Of their prefills.
    """
    seconds = elapsed_per_second(state) * seconds
    return _bearable(seconds, late, IN_TIME) & (seconds <= IN_TIME)


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
