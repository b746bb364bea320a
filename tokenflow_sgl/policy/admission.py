"""Which streams join the working set: the demand test.

A newcomer is admitted if, for every horizon h, the engine time that all readers of the
working set will have asked for within h, plus the prefills that are due, fits in eta * h,
and if the KV of all of them fits the device and the host. Compared with the paper's
bound on the number of requests (Eq. 4, 5) and on the sum of rates (Eq. 6), the test
sees buffers (a reader with ten seconds unread asks for nothing for ten seconds) and
ends (an output of 40 tokens stops asking), which is what lets a burst in early without
overcommitting a sustained overload.

A finite burst is another matter: when nothing new has come for a while and a little more than
the engine's time (`burst_eta`) would clear the whole queue, it is cleared at once. Promising
more for less than that would make all readers stall and still leave some waiting.

How long answers get is not known, at first not even roughly. Lengths that are careful but not
certain let a burst in early. What is at stake is another question: where answers of the worst
lengths would ask for far more than the engine's time, all readers would stall for long, so the test
is passed with those as well, with more of the time (`WORST_MORE`). On an RTX 4090 with 16,000
tokens of memory a third of the readers stalled without it, after a burst to a server that had
answered nothing yet. On an H200 the same uncertainty costs little.

What streams ask for is in `demand`, what a token costs in `supply`.

A stream that thinks has no reader to keep. So it is asked about again in each plan, in one order
with the newcomers: one that comes behind them, since much of its thought is still expected, takes
no memory from others where it would take their time.

Some things that a fluid view does not see. Others will come after this newcomer: where streams
take turns in memory, prefills go on taking the share of the time that they took lately, and what
decodes beside them gets hardly ahead of its reader, to be switched out for another. Whatever the
costs miss shows in readers who stall: then no stream joins. A long prompt is computed in chunks
beside which the others read on, so it never asks for more than half of the engine's time.
A reader who is faster than the engine can decode any stream gets what it can. And where more
streams share the memory than fit, each of them builds up a buffer for the times that it is switched
out: on average the hysteresis. With half of it the running stream with the most slack has just as
much as a paused one needs to take its place, and any shortage is a stall.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, State
from tokenflow_sgl.contract.needs import kv_promised, states_kept, windows, windows_kept
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.demand import FINAL_SHARE, Asking
from tokenflow_sgl.policy.queueing import first_of
from tokenflow_sgl.policy.supply import Supply, supplied

DECISIVE = 2.0
"""The horizon that is looked at first: where no candidate fits, it says so most often."""
OTHERS: FloatArray = np.array([5.0, 10, 20, 30, 45, 60, 80, 110, 150, 210, 300])[:, None]
HORIZONS: FloatArray = np.concatenate([[[DECISIVE]], OTHERS])
"""Seconds ahead at which demand is compared with supply, as a column."""
CONSIDERED = 128
"""Newcomers that one pass looks at, in order of arrival, unless it clears the whole queue."""
YOUNG = 10.0
"""Seconds that a queue may be old to be cleared: what has waited longer gains little by it."""
OWN_SHARE = 0.5
"""Share of a horizon that a newcomer's own prefill asks for at most: it is done in chunks that let
the others read on, however long the prompt is, and only the newcomer waits for its end."""
DRY_SHARE = 0.05
"""Share of the started readers above whose stalling no stream joins: the engine has less to give
than the test believes."""
ONGOING = 1.1
"""Share of the time that later newcomers' prefills will take, over that of the last ones."""
UNMEASURED = 1.2
"""Cost of a token over the model's, until it was measured: the first readers come before that."""
FAR = (60.0, 150.0)
"""Seconds ahead until which a share `eta` of the time is promised, and from which more is."""
FAR_MORE = 0.1
"""How much more that is, as a share of `eta`."""
CROWDED = (2.5, 4.0)
"""Streams that come to hold so many times the device's memory get all of it, or nothing."""
UNKNOWN = 8
"""Streams that are served while no decode step has been seen that would say what others cost."""


_NONE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class DemandAnswer:
    """What the test says of the streams without text, as indices into `state.streams`.

    Attributes:
        join: Waiting streams that join now, in their order.
        held: Streams that think and, while paused, only get memory that is free.
    """

    join: IntArray
    held: IntArray = field(default_factory=lambda: _NONE)


def admissible(
    state: State, config: WorkingSetConfig, queue: FloatArray | None = None
) -> DemandAnswer:
    """Which waiting streams join now, and which of those that think may displace others.

    queue: what sorts them, see `queueing.queue_keys`; None: their arrival.

    At least one is admitted while the working set is empty, whatever the test says: an engine that
    idles serves no reader.
    """
    streams = state.streams
    waiting = streams.waiting_index
    newcomers = waiting[~streams.admitted.take(waiting)]
    thinking = streams.begun_thinking
    if not len(newcomers) and not len(thinking):
        return DemandAnswer(newcomers)
    readers = streams.member
    if len(thinking):
        readers = readers.copy()
        readers[thinking] = False
    members = readers.nonzero()[0]
    whole = bool(len(newcomers)) and _burst_is_over(state, config)
    # Most often not even the first one fits, and then no other one is looked at.
    if len(members) and not len(thinking) and not whole:
        first = first_of(newcomers, queue, 1)
        if not _fits(state, config, Asking(state, config, members, first)):
            return DemandAnswer(_NONE)
    # The whole queue, or the head of it.
    newcomers = first_of(newcomers, queue, None if whole else CONSIDERED)

    def asked(some: IntArray) -> Asking:
        if not len(thinking):
            return Asking(state, config, members, some)
        every = np.sort(np.concatenate([thinking, some]))
        return Asking(state, config, members, first_of(every, queue, None))

    asking = asked(newcomers)
    fits = _memory_allows(state, config, asking)
    if whole and fits == len(newcomers) and _clears(state, config, asking):
        return DemandAnswer(newcomers)
    most = min(fits, CONSIDERED)
    if most < len(newcomers):
        asking = asked(newcomers[:most])
    found = asking.candidates
    begin = _time_allows(state, config, asking)
    fresh = asking.new
    join = found[:begin][fresh[:begin]]
    if len(join) and streams.lengths.worst is not None:
        longer = Asking(state, config, members, join, worst=streams.lengths.worst)
        join = join[: _time_allows(state, config, longer)]
    if not len(join) and len(newcomers) and not len(members) and not len(thinking):
        join = newcomers[:1]
    return DemandAnswer(join, found[begin:][~fresh[begin:]])


def _fits(state: State, config: WorkingSetConfig, first: Asking) -> bool:
    """Whether the only candidate can join."""
    return _memory_allows(state, config, first) > 0 and _time_allows(state, config, first) > 0


def _memory_allows(state: State, config: WorkingSetConfig, asking: Asking) -> int:
    """How many new candidates, in order, can be promised KV memory until they end."""
    wanted = asking.final[asking.start :][asking.new].cumsum()
    most = len(wanted)
    if not most:
        return 0
    if state.memory.window.tokens:
        left = windows_left(state, config, asking)
        reach = asking.reach[asking.start :][asking.new]
        most = int(windows(state.memory, reach).cumsum().searchsorted(left, side="right"))
    if state.memory.device.state.total:
        left = states_kept(state.memory) - len(asking.final[asking.holds])
        most = min(most, max(int(left), 0))
    if wanted[-1] <= memory_left(state, config, asking, asking.most_spread):
        return most
    left = memory_left(state, config, asking, asking.spread)
    return min(int(wanted.searchsorted(left, side="right")), most)


def memory_left(state: State, config: WorkingSetConfig, asking: Asking, spread: float) -> float:
    """KV tokens that can be promised beside those of the streams with memory; below 0: none.

    spread: of their answers, as of `asking`.
    """
    memory = state.memory
    budget = config.fill * kv_promised(memory, asking.growth)
    budget -= asking.promised
    # Answers that get longer than expected and shorter ones do not quite make up for each other.
    return budget - FINAL_SHARE * spread


def windows_left(state: State, config: WorkingSetConfig, asking: Asking) -> float:
    """Places in the window pools that can be promised beside those of the streams with memory.

    Below 0: none; infinite where no layer has a window.
    """
    held = windows(state.memory, asking.reach[asking.holds])
    return windows_kept(state.memory, config.fill) - float(held.sum())


def _clears(state: State, config: WorkingSetConfig, asking: Asking) -> bool:
    """Whether all that waits can be cleared at once, now that the burst is over.

    That promises too much anyway: no stock, and no margin but `burst_eta`. Readers bear it by their
    slack; requests without a reader have none, and would all be answered later.
    """
    if state.costs.decode is None:
        return False
    if not state.streams.streaming[asking.members].all():
        return False
    supply = supplied(state, asking.mean_length, asking.mean_own, 1.0)
    wanted = _wanted(state, asking, HORIZONS, supply)
    return bool((wanted[:, -1:] <= config.burst_eta * HORIZONS).all())


def _time_allows(state: State, config: WorkingSetConfig, asking: Asking) -> int:
    """How many candidates, in order, pass the demand test at every horizon."""
    fits = len(asking.candidates)
    if state.costs.decode is None or not fits:
        return asking.few(UNKNOWN)
    supply = supplied(state, asking.mean_length, asking.mean_own, UNMEASURED)
    if asking.dry_share(supply.speed) > DRY_SHARE:
        return 0
    count, roomy = len(asking.candidates), asking.within(state.memory.kv.total)
    fits = _passes(state, config, asking, supply, roomy) if roomy else 0
    if fits < roomy or roomy == count:
        return fits
    # From here on streams take turns in memory: a stock for each, and later newcomers' prefills.
    usual = ONGOING * state.prefill_share
    return max(_passes(state, config, asking, supply, count, config.hysteresis, usual), roomy)


def _passes(
    state: State,
    config: WorkingSetConfig,
    asking: Asking,
    supply: Supply,
    fits: int,
    stock: float = 0.0,
    usual: float = 0.0,
) -> int:
    """How many of the first `fits` candidates pass the test at every horizon.

    stock, usual: As of `_wanted`.
    """
    for horizons in (DECISIVE, OTHERS):
        wanted = _wanted(state, asking, horizons, supply, stock, usual)[..., :fits]
        may: FloatArray | float = asking.eta  # so near, this is all
        if horizons is not DECISIVE:
            may = promised_share(asking, horizons, asking.crowd[1 : fits + 1])
        passes = np.atleast_2d(wanted <= may * horizons).all(axis=0)
        if not passes.all():
            # Nothing overtakes the first one that does not fit.
            fits = int(passes.argmin())
        if not fits:
            break
    return fits


def promised_share(
    asking: Asking, horizons: FloatArray | float, crowd: FloatArray | float
) -> FloatArray:
    """Share of the engine's time that may be promised within each horizon.

    Some is kept for what the test cannot see. Far ahead less is, where most streams that rest can
    be brought back at once: what is missing then shows long before, and no stream joins.

    Args:
        asking: Who asks for it.
        horizons: Seconds; a column of several, or one.
        crowd: See `Asking.crowd`, shape (candidates,), or one.

    Returns:
        Shape ([len(horizons),] candidates).
    """
    rare = np.clip((CROWDED[1] - crowd) / (CROWDED[1] - CROWDED[0]), 0.0, 1.0)
    far = np.clip((horizons - FAR[0]) / (FAR[1] - FAR[0]), 0.0, 1.0)
    return np.asarray(asking.eta * (1.0 + FAR_MORE * rare * far))


def _wanted(
    state: State,
    asking: Asking,
    horizons: FloatArray | float,
    supply: Supply,
    stock: float = 0.0,
    usual: float = 0.0,
) -> FloatArray:
    """Engine seconds asked for within each horizon if 1, 2, ... of the candidates join.

    horizons, stock: As of `Asking.demand`. usual: Share of each horizon that prefills take at
    least. Shape ([len(horizons),] candidates).
    """
    due = prefills_due(state, asking.members)
    prefill = np.zeros(len(asking.candidates))
    prefill[asking.new] = state.prefill_seconds_of(asking.candidates[asking.new])
    # Those before a candidate, and of its own prefill what its chunks leave to the others.
    first = prefill.cumsum() - prefill + np.minimum(prefill, OWN_SHARE * horizons)
    of_each = asking.demand(horizons, supply, stock)
    demand = of_each[..., : asking.start].sum(axis=-1, keepdims=True)
    demand = demand + of_each[..., asking.start :].cumsum(axis=-1)
    return np.asarray(demand + np.maximum(due + first, usual * horizons))


def members_want(state: State, asking: Asking, horizons: FloatArray, supply: Supply) -> FloatArray:
    """Engine seconds that the members alone ask for within each horizon, shape (len(horizons),)."""
    of_each = asking.demand(horizons, supply, 0.0)[:, : asking.start]
    return np.asarray(of_each.sum(axis=1) + prefills_due(state, asking.members))


def prefills_due(state: State, members: IntArray) -> float:
    """Seconds of the members' prefills that are due."""
    pending = members[state.streams.waiting.take(members)]
    due = float(state.prefill_seconds_of(pending).sum()) if len(pending) else 0.0
    return due + state.costs.prefill_seconds(float(state.memory.kv.promised))


def _burst_is_over(state: State, config: WorkingSetConfig) -> bool:
    """Nothing came for a while, and the queue is all of what came just before."""
    arrival = state.streams.arrival
    if state.now - float(arrival.max()) < config.calm:
        return False
    first = float(arrival.take(state.streams.waiting_index).min())
    return state.now - first <= YOUNG
