"""Which streams join the working set by objectives: LayerKV's SLO-aware scheduler (section 3.1).

Prefills of newcomers take time from the streams that decode. Eq. 1 says how much stream i can bear,

    allow_i = T_tpot_i * (N_past + N_future) - (T_past + T_future),

and by Eq. 2 newcomers join while the sum of their prefills is below the least of these. T_tpot is
the objective of the stream, or the time in which its reader reads a token. What this does otherwise
than the paper, whose streams keep all KV that they need within reach, layer by layer:

- *Turns.* Streams are executed whole. Where they do not fit into the device together they take
  turns in it, so T_future is that of a step in which all of them with the newcomer had their turn.
- *N_future* is a quantile of the answers' lengths, given that so much has come: a low one where the
  stream gains on its objective, a high one where it loses.
- *Retained layers* (Eq. 3, 4) are all or none. A newcomer for which memory stays free (`forecast`,
  Eq. 5) is kept whole. For another one some stream has to be parked on the host, itself or one that
  is further ahead of its reader (`exchange` says who), and the copy counts if it takes longer than
  the prefill under which it hides.
- *Streams without text* have objectives, too: none joins where the turns would be too slow for one
  of these. Eq. 2 alone admits whatever comes while no stream decodes.
- *Out of reach.* A stream that misses its objective even if no newcomer joins does not hold up
  the others. Where these are more than a few, the engine has too much to do, and none joins.
- A stream without an objective of its own is judged by its reader: a stall that is over is over.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, State
from tokenflow_sgl.contract.needs import (
    Room,
    in_pages,
    kv_kept,
    occupied,
    states_kept,
    windows,
    windows_kept,
)
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy.admission import CONSIDERED, DRY_SHARE, UNKNOWN, prefills_due
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.queueing import first_of

FEW, MANY = 0.25, 0.75
"""Quantiles of what is left of an answer: as little as N_future may be, and as much."""
STAGES: IntArray = np.array([0, 4, 8, 16, 24, 32, 48, 64])[:, None]
"""Decode steps ahead at which free memory is forecast, as a column."""


def within_objectives(
    state: State, config: WorkingSetConfig, queue: FloatArray | None = None
) -> IntArray:
    """Indices of the waiting streams that join now, in their order.

    queue: what sorts them, see `queueing.queue_keys`; None: their arrival.

    At least one is admitted while the working set is empty.
    """
    streams, memory, costs = state.streams, state.memory, state.costs
    waiting = streams.waiting_index
    newcomers = first_of(waiting[~streams.admitted[waiting]], queue, CONSIDERED)
    members = np.nonzero(streams.member)[0]
    if not len(newcomers):
        return newcomers
    least = 0 if len(members) else 1
    # Short prompts alone never tell what a prefill costs.
    if costs.decode is None:
        return newcomers[: max(UNKNOWN - len(members), least)]
    length: FloatArray = streams.length[newcomers].astype(np.float64)
    own: FloatArray = streams.own[newcomers].astype(np.float64)
    need = np.cumsum(own + state.growth.reserve(1, DECODE_TARGET_STEPS))
    held = float(occupied(memory, streams, members)[0])
    context: FloatArray = float(streams.length[members].sum()) + np.cumsum(length)
    count: FloatArray = np.arange(1, len(newcomers) + 1, dtype=np.float64) + len(members)
    stays = need <= forecast(state)
    kept = np.cumsum(windows(memory, length))
    held_windows = windows(memory, streams.length[members]).sum()
    stays &= kept <= Room(memory).window
    seconds = state.prefill_seconds_of(newcomers)
    if state.links.store.rate > 0.0:
        seconds = np.where(stays, seconds, np.maximum(seconds, own / state.links.store.rate))
    asked = prefills_due(state, members) + np.cumsum(seconds)
    passes = asked < allowance(state, context, count)
    passes &= _pace(state, context, count) <= _slowest(state, newcomers)
    passes &= held + need <= config.fill * kv_kept(memory)
    passes &= held_windows + kept <= windows_kept(memory, config.fill)
    passes &= count <= states_kept(memory)
    # Nothing overtakes the first one that does not pass.
    fits = len(newcomers) if passes.all() else int(np.argmin(passes))
    return newcomers[: max(fits, least)]


def allowance(state: State, context: FloatArray, count: FloatArray) -> FloatArray:
    """Seconds of prefills that every decoding stream can bear (Eq. 1 and the minimum of Eq. 2).

    Args:
        state: As it is; costs are known.
        context: KV tokens of the working set with 1, 2, ... newcomers, shape (n,).
        count: Streams in it, shape (n,).

    Returns:
        Seconds, shape (n,): infinite where no stream has an objective within reach; 0.0 where too
        many have theirs out of reach.
    """
    streams = state.streams
    started = streams.member & (streams.seen > 0) & streams.streaming
    index = np.nonzero(started)[0]
    objective = objectives(state, index)
    # What the engine cannot give to any stream is asked of no newcomer.
    possible = objective >= _alone(state, index)
    index, objective = index[possible], objective[possible]
    everywhere = np.full(len(context), np.inf)
    if not len(index):
        return everywhere
    past = _gained(state, index, objective)
    curves, kind = streams.lengths.typical, streams.kind[index]
    generated, limit = streams.generated[index], streams.limit[index]
    few, many = (curves.quantile_left(kind, generated, limit, share) for share in (FEW, MANY))

    def allowed(pace: FloatArray) -> FloatArray:
        """Seconds per token of each stream at each pace; shape (n, streams)."""
        gain = objective - pace[:, None]
        return np.asarray(past + np.minimum(few * gain, many * gain))

    members = streams.member
    held, number = int(streams.length[members].sum()), int(np.count_nonzero(members))
    today = _pace(state, _one(held), _one(number))
    within = allowed(today)[0] >= 0.0
    if np.count_nonzero(~within) > DRY_SHARE * len(index):
        return np.zeros(len(context))
    if not within.any():
        return everywhere
    found = allowed(_pace(state, context, count))[:, within]
    return np.asarray(found.min(axis=1))


def objectives(state: State, index: IntArray) -> FloatArray:
    """Seconds per token that each stream is to have on average, shape (len(index),)."""
    streams = state.streams
    reading = 1.0 / streams.rate[index]
    if streams.tpot_slo is None:
        return reading
    stated = streams.tpot_slo[index]
    return np.where(np.isnan(stated), reading, stated)


def forecast(state: State) -> float:
    """KV tokens that stay free on the device in the next decode steps: the least of Eq. 5.

    Each running stream takes a step's tokens and is taken to need a page more, and the slots of its
    drafts; it gives all back at the median of what is left of its answer. Below 0.0: memory will be
    short.
    """
    streams, memory = state.streams, state.memory
    running = streams.running_index
    free = memory.kv.free - memory.kv.promised + int(streams.own[streams.draining].sum())
    if not len(running):
        return float(free)
    left = streams.lengths.typical.quantile_left(
        streams.kind[running], streams.generated[running], streams.limit[running], 0.5
    )
    made = STAGES * state.costs.tokens_per_step
    ends = left <= made
    released = np.where(ends, streams.own[running] + left, 0.0).sum(axis=1)
    allocated = np.minimum(left, made).sum(axis=1)
    allocated += (memory.page_size + memory.ahead) * len(running)
    return float((free + released - allocated).min())


def _slowest(state: State, newcomers: IntArray) -> FloatArray:
    """Seconds per token that all streams without text can bear, with 1, 2, ... newcomers."""
    streams = state.streams
    promised = np.nonzero(streams.member & (streams.seen == 0) & streams.streaming)[0]
    index = np.concatenate([promised, newcomers])
    bearable = np.where(streams.streaming[index], objectives(state, index), np.inf)
    # As above: what no stream could have is asked of none.
    bearable[bearable < _alone(state, index)] = np.inf
    least = np.minimum.accumulate(bearable)
    return np.asarray(least[len(promised) :])


def _alone(state: State, index: IntArray) -> FloatArray:
    """Seconds per token of each stream if the engine had no other."""
    length = state.streams.length[index].astype(np.float64)
    return state.costs.token_seconds(np.ones(len(index)), length)


def _gained(state: State, index: IntArray, objective: FloatArray) -> FloatArray:
    """T_tpot * N_past - T_past: seconds by which each stream is ahead of its objective."""
    streams = state.streams
    # The first token is there at once, so that the objective is about those after it.
    reading = state.slack[index] - objective
    if streams.tpot_slo is None or streams.first_text is None:
        return np.asarray(reading)
    since = streams.first_text[index]
    exact = objective * (streams.seen[index] - 1) - (state.now - since)
    stated = ~np.isnan(streams.tpot_slo[index]) & ~np.isnan(since)
    return np.where(stated, exact, reading)


def _pace(state: State, context: FloatArray, count: FloatArray) -> FloatArray:
    """Seconds per token of each of `count` streams with so much context, in turns if need be."""
    memory, streams = state.memory, state.streams
    mean = np.maximum(context, 1.0) / count
    taken = context
    if streams.shared is not None:
        # What the streams share with each other takes memory once, and is read by each.
        members = np.nonzero(streams.member)[0]
        length = int(streams.length[members].sum())
        taken = context * (occupied(memory, streams, members)[0] / max(length, 1))
    part = np.minimum(memory.kv.total / np.maximum(taken, 1.0), memory.max_running / count)
    if total := memory.device.window.total:
        each = np.minimum(in_pages(memory, mean), memory.window.tokens)
        part = np.minimum(part, total / (count * each))
    part = np.minimum(part, 1.0)
    return np.asarray(state.costs.token_seconds(part * count, part * context) / part)


def _one(value: float) -> FloatArray:
    return np.array([max(float(value), 1.0)])
