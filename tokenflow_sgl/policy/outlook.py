"""When a request that comes now would have its first token: the demand test, read as a time.

Admission asks whether a newcomer fits now. Here it is asked from when on it would: what the members
ask for until any later moment stays as it is, since the engine does not idle, and a newcomer's
demand begins so much later. Those that go before it are let in first, one block of them after the
other, each as soon as it fits behind the ones before. Memory becomes free as answers end: the
engine comes to their ends before their readers do, and of those that go on more is promised by
then. From joining on, prefills are done one after the other.

Shorter prompts go first (`queueing`), so the wait is found for several lengths of a prompt. What
comes later and overtakes is not foreseen, and answers end sooner or later than expected:
benchmarks/overload has how true it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, State, Streams
from tokenflow_sgl.contract.lengths import LengthCurves
from tokenflow_sgl.contract.needs import kv_promised
from tokenflow_sgl.policy.admission import (
    ONGOING,
    OWN_SHARE,
    UNMEASURED,
    prefills_due,
    promised_share,
)
from tokenflow_sgl.policy.config import SLO, WorkingSetConfig
from tokenflow_sgl.policy.deadlines import with_deadlines
from tokenflow_sgl.policy.demand import FINAL_SHARE, STOCKING, Asking
from tokenflow_sgl.policy.on_time import goes_first
from tokenflow_sgl.policy.queueing import (
    LAST_IN_TIME,
    SHORTEST_PREFILL,
    Queue,
    queue_keys,
    waiting_queue,
)
from tokenflow_sgl.policy.supply import Supply, supplied
from tokenflow_sgl.policy.urgency import HEAD_START
from tokenflow_sgl.policy.working_set import WorkingSetMemo

LONGEST = 600.0
"""Seconds that a wait is said to be at most."""
MOST_BLOCKS = 32
"""Groups into which those that wait are put, each of which joins at one moment."""
AHEAD: FloatArray = np.array([0.0, 1.0, 2.0, 4.0, 16.0, 64.0, 256.0])
"""Numbers of further newcomers for which the wait is found behind them."""
EACH = 4
"""The place in `AHEAD` by which it is told what one of them adds."""
SAMPLED = 64
"""Requests at most that say what usual ones are like."""
LENGTHS = (0.1, 0.5, 0.9)
"""Quantiles of the prompts for which the wait is found."""
RECENT = 20.0
"""Seconds whose arrivals tell how many come."""
ALONE = 0.01
"""Share of what all hold that may be left when they count as gone."""
SURE = 0.5
"""Share of the decoding that is reckoned with: answers that are there turn out longer than others,
and lengths are learned from those that have ended."""
TOGETHER = 48.0
"""Usual requests that join at one moment, at most."""
MOST_OVERTAKEN = 0.75
"""Share of the places in front of a request that later ones take, at most."""
_AT: FloatArray = np.array(
    [0, 0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45, 60, 80, 110, 150, 210, 300, 420, LONGEST]
)
"""Seconds ahead at which demand is looked at, and at which newcomers may join, shape (g,)."""


def _shifts() -> FloatArray:
    """Matrices that move a curve over `_AT` so far to the right, shape (g, g, g)."""
    moved = np.zeros((len(_AT), len(_AT), len(_AT)))
    for column, curve in enumerate(np.eye(len(_AT))):
        for number, by in enumerate(_AT):
            moved[number, :, column] = np.interp(_AT - by, _AT, curve, left=0.0)
    return moved


_SHIFTS = _shifts()
_LATER = _AT[:, None] + _AT[None, :]
"""Ends of the horizons of one that joins then, shape (g, g)."""


@dataclass(frozen=True, slots=True, eq=False)
class Usual:
    """What requests are like, by some of them.

    Attributes:
        prompt: Tokens that were to be computed, shape (n,).
        limit, kind, rate: As in `contract.Streams`, shape (n,).
    """

    prompt: IntArray
    limit: IntArray
    kind: IntArray
    rate: FloatArray


def usual(streams: Streams) -> Usual:
    """What the streams that are here were like when they came."""
    some = np.linspace(0, len(streams) - 1, min(len(streams), SAMPLED)).astype(np.int64)
    return Usual(
        streams.uncached.take(some),
        streams.limit.take(some),
        streams.kind.take(some),
        streams.rate.take(some),
    )


@dataclass(frozen=True, slots=True, eq=False)
class WaitOutlook:
    """How long newcomers would wait for their first token, as seen at one moment.

    Attributes:
        at: That moment, seconds on the body's clock.
        prompt: Tokens of prompts, ascending, shape (p,).
        wait: Seconds for a request with each behind `AHEAD` others, from 0 to `LONGEST`, shape
            (p, len(AHEAD)).
        usual: What requests are like.
        lasted: Share of such waits after which the way was free lately, as a rule, 0.0 to 1.0.
    """

    at: float
    prompt: FloatArray
    wait: FloatArray
    usual: Usual | None = None
    lasted: float = 1.0

    def expected(self, now: float, prompt: float | None = None, ahead: float = 0.0) -> float:
        """Seconds until the first token of a request that comes now.

        Args:
            now: Seconds on the same clock; what is left of the wait becomes less with it.
            prompt: Its tokens; None: a usual one.
            ahead: Requests that came since `at`.
        """
        tokens = float(np.median(self.prompt)) if prompt is None else prompt
        wait = [float(np.interp(tokens, self.prompt, column)) for column in self.wait.T]
        there = float(np.interp(ahead, AHEAD, wait))
        return min(max(there - (now - self.at), 0.0), LONGEST)


def nothing_waits(at: float) -> WaitOutlook:
    """Every newcomer is served at once, as far as is known."""
    return WaitOutlook(at, np.zeros(1), np.zeros((1, len(AHEAD))))


def outlook(state: State, config: WorkingSetConfig, before: Usual | None = None) -> WaitOutlook:
    """How long newcomers would wait for their first token under `WorkingSetPolicy`.

    Args:
        state: As it is, with that policy's memo.
        config: Parameters of the policy.
        before: What requests are like where none is here; None: it is not known.
    """
    state = with_deadlines(state)
    streams, costs = state.streams, state.costs
    like = usual(streams) if len(streams) else before
    if like is None or costs.decode is None:
        return nothing_waits(state.now)
    waiting, keys = _in_order(state, config)
    prompts = np.quantile(like.prompt, LENGTHS).astype(np.float64)
    prefills = costs.prefill_seconds(prompts)
    # A newcomer overtakes those with far longer prompts.
    turns = -HEAD_START / np.maximum(costs.prompt_seconds(prompts), SHORTEST_PREFILL)
    late = int(np.count_nonzero((keys > LAST_IN_TIME) | (keys == -np.inf)))
    if config.admission != SLO:
        turns[goes_first(state, prefills, late)] = LAST_IN_TIME
    places = keys.searchsorted(turns, side="right").tolist()
    joining = _Joining(state, config, waiting, like)
    waits = _waits(state, joining, places, prefills)
    worst = streams.lengths.worst
    if worst is not None:
        # Who joins has passed the test of time with these lengths, too.
        joining = _Joining(state, config, waiting, like, worst=worst, likelier=joining.there)
        waits = np.maximum(waits, _waits(state, joining, places, prefills))
    return WaitOutlook(state.now, prompts, np.minimum(waits, LONGEST), like)


def _waits(
    state: State, joining: _Joining, places: Sequence[int], prefills: FloatArray
) -> FloatArray:
    """Seconds until first tokens by prompt and `AHEAD`, shape (p, len(AHEAD)).

    Args:
        state: As it is.
        joining: Of those that wait; they join by this.
        places: Of newcomers among them, by prompt, ascending, shape (p,).
        prefills: Seconds of newcomers' prefills, shape (p,).
    """
    streams, waiting = state.streams, joining.waiting
    size = max(-(-len(waiting) // MOST_BLOCKS), 1)
    lately = streams.arrival > state.now - RECENT
    rate = float(np.count_nonzero(lately)) / RECENT
    # Ends come sooner or later than expected: where many have joined, others will, too.
    most_each = RECENT / max(int(np.count_nonzero(lately & streams.admitted)), 1)
    begin, waits = 0, np.zeros((len(LENGTHS), len(AHEAD)))
    for row, (place, prefill) in enumerate(zip(places, prefills.tolist(), strict=True)):
        while begin < place:
            end = min(begin + size, place)
            joining.add(np.arange(begin, end))
            begin = end
        waits[row] = joining.usual_waits(prefill)
        # While it waits, others with shorter prompts come and go before it.
        each = max(float(waits[row, EACH] - waits[row, 0]), 0.0) / float(AHEAD[EACH])
        each = min(each, most_each)
        waits[row] /= 1.0 - min(rate * LENGTHS[row] * each, MOST_OVERTAKEN)
    return waits


def _in_order(state: State, config: WorkingSetConfig) -> tuple[IntArray, FloatArray]:
    """Streams that wait to join, in their order, and what sorts them."""
    streams = state.streams
    waiting = streams.waiting_index
    waiting = waiting[~streams.admitted.take(waiting)]
    if not len(waiting):
        return waiting, np.zeros(0)
    before = state.memo.queue if isinstance(state.memo, WorkingSetMemo) else Queue()
    keys = queue_keys(state, waiting_queue(state, before, config), config).take(waiting)
    order = np.argsort(keys, kind="stable")
    return waiting[order], keys[order]


class _Joining:
    """Lets newcomers join one after the other, each as soon as it fits.

    Args:
        state: As it is.
        config: Parameters of the policy.
        waiting: Streams that have not joined, in their order.
        like: What further requests are like.
        worst: Lengths of all answers in place of careful ones, and then memory does not count.
        likelier: What `there` is by lengths that are likelier than the worst; None: all members
            stay.

    Attributes:
        there: Share of the members' KV that is still promised after `_AT`, by these lengths, shape
            (len(_AT),).
    """

    def __init__(
        self,
        state: State,
        config: WorkingSetConfig,
        waiting: IntArray,
        like: Usual,
        *,
        worst: LengthCurves | None = None,
        likelier: FloatArray | None = None,
    ) -> None:
        self.waiting = waiting
        members = state.streams.member.nonzero()[0]
        asking = Asking(state, config, members, waiting, worst=worst)
        context, own = float(like.prompt.mean()), float(like.prompt.mean())
        if len(asking.index):
            context, own = asking.mean_length, asking.mean_own
        supply = supplied(state, context, own, UNMEASURED)
        column, start = _AT[:, None], asking.start
        crowd = asking.crowd.item(0)
        # Where streams take turns in memory: a stock for each, and later newcomers' prefills.
        stock = config.hysteresis if crowd >= 1.0 else 0.0
        self._usual_prefills = ONGOING * state.prefill_share * _AT if crowd >= 1.0 else _AT * 0.0
        # It does not idle: who is in memory decodes, however far ahead of the reader.
        own = max(float(asking.own[asking.holds].sum()), 1.0)
        decoding = SURE * min(float(state.memory.kv.total) / own, 1.0)
        demand = asking.demand(column, supply, stock)
        held = asking.held(column, supply, decoding)
        self._demand, self._held = demand[:, start:], held[:, start:]
        self._prefill = state.prefill_seconds_of(waiting)
        self._due = self._done = prefills_due(state, members)
        self._wanted = demand[:, :start].sum(axis=1)
        self._taken = held[:, :start].sum(axis=1)
        self.there = self._taken / max(self._taken.item(0), 1.0)
        self._asking_still = np.ones(len(_AT)) if likelier is None else likelier
        self._may = promised_share(asking, _AT, crowd) * _AT
        room = config.fill * kv_promised(state.memory, asking.growth) - asking.shared
        self._room = max(room - FINAL_SHARE * asking.spread, 1.0)
        if worst is not None:
            self._room = np.inf
        lengths = worst or state.streams.lengths.careful
        self._usual = _asked_by(like, lengths, supply, stock, decoding)
        self._joined = 0

    def add(self, block: IntArray) -> None:
        """Let some of those that wait join."""
        demand, held = self._demand[:, block].sum(axis=1), self._held[:, block].sum(axis=1)
        self._join(demand, held, float(self._prefill[block].sum()))

    def usual_waits(self, prefill: float) -> list[float]:
        """Seconds until the first token of one more usual request, behind `AHEAD` others.

        prefill: Seconds that its own takes. None of them joins in the end.
        """
        before = self._wanted, self._taken, self._joined, self._done
        demand, held = self._usual
        waits, there = [], 0.0
        for ahead in AHEAD.tolist():
            while there < ahead:
                more = min(ahead - there, TOGETHER)
                self._join(more * demand, more * held, more * prefill)
                there += more
            _, at = self._earliest(demand, held, prefill, one=True)
            waits.append(min(max(self._done, at) + prefill, LONGEST))
        self._wanted, self._taken, self._joined, self._done = before
        return waits

    def _join(self, demand: FloatArray, held: FloatArray, prefill: float) -> None:
        place, at = self._earliest(demand, held, prefill)
        self._wanted = self._wanted + _SHIFTS[place] @ demand
        self._taken = self._taken + _SHIFTS[place] @ held
        self._joined = place
        self._done = max(self._done, at) + prefill

    def _earliest(
        self, demand: FloatArray, held: FloatArray, prefill: float, *, one: bool = False
    ) -> tuple[int, float]:
        """When these fit: the place in `_AT` at which they do, and the moment up to it.

        one: It is one stream, which joins an engine without others whatever it asks for.
        """
        first = self._joined
        # What is asked for until the end of each horizon from then on, shape (g, g); who has ended
        # by then asks for nothing more, however long the worst answers get.
        begun = self._wanted[first:, None]
        asked = np.interp(_LATER[first:], _AT, self._wanted)
        asked = begun + (asked - begun) * self._asking_still[first:, None] + demand
        late = self._due + np.minimum(prefill, OWN_SHARE * _AT)
        late = np.maximum(late, np.interp(_LATER[first:], _AT, self._usual_prefills))
        may = np.interp(_LATER[first:], _AT, self._may)
        # How far beyond what may be promised, as a share of it; below 0: it fits.
        over = (asked + late) / np.maximum(may, 1e-9) - 1.0
        over[:, 0] = -1.0
        room = (self._taken[first:] + held[0]) / self._room - 1.0
        most = np.maximum(over.max(axis=1), room)
        fits = most <= 0.0
        if one:
            fits |= self._taken[first:] <= ALONE * self._taken[0]
        if not fits.any():
            return len(_AT) - 1, LONGEST
        place = int(fits.argmax())
        at = float(_AT[first + place])
        if place and most[place] <= 0.0:
            before = float(_AT[first + place - 1])
            at -= (at - before) * float(most[place] / (most[place] - most[place - 1]))
        return first + place, at


def _asked_by(
    like: Usual, lengths: LengthCurves, supply: Supply, stock: float, decoding: float
) -> tuple[FloatArray, FloatArray]:
    """Engine seconds that one of these requests asks for within `_AT`, and KV promised to it then.

    On average, each of shape (len(_AT),). The latter as of `Asking.held`.
    """
    column = _AT[:, None]
    none = np.zeros(len(like.prompt), dtype=np.int64)
    answers = lengths.remaining(like.kind, none, like.limit)
    ahead = np.minimum(STOCKING * column, stock)
    tokens = np.minimum((column + ahead) * like.rate, column * supply.speed)
    read: FloatArray = np.asarray(like.prompt + supply.row, dtype=np.float64)
    demand = (answers.work(read, tokens) * supply.token_cost).mean(axis=1)
    done = np.maximum(tokens, column * (decoding * supply.speed))
    held = (like.prompt + done) * answers.alive(done)
    held += FINAL_SHARE * (answers.left - answers.coming(done))
    return demand, np.asarray(held.mean(axis=1))
