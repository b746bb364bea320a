"""Newcomers and exchange where tenants have shares: who joins, who runs, who gives way.

A stream joins if a server of its tenant's share alone could serve it, or if this one can beside all
others. What runs is planned as in `exchange`, with two rules before it:

- A stream that its tenant's part of the memory (`tenancy.level`) has room for is *owed* it. Owed
  streams whose readers will mind come first in line, and tenants above their part give way to them,
  whatever the slack of their streams and whether they have readers.
- Any other stream displaces streams of its own tenant, by the rules of `victims`, and others only
  where these are far ahead of their readers, or their tenant is above its part.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from tokenflow_sgl.contract import BoolArray, Cause, FloatArray, IntArray, Preempt, State
from tokenflow_sgl.contract.needs import Need, Room, need, needs, steps, together
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy.admission import DemandAnswer
from tokenflow_sgl.policy.admission_rules import AdmissionRules
from tokenflow_sgl.policy.candidates import CONSIDERED, STOCKED, Candidate, in_line
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.exchange import CONTENT, Exchange, useful_band
from tokenflow_sgl.policy.tenancy import Tenancy, TenantView, level
from tokenflow_sgl.policy.urgency import leeway, turn, weights
from tokenflow_sgl.policy.victims import SATURATED, Victims, displaceable


def join_by_shares(state: State, rules: AdmissionRules, tenancy: Tenancy) -> DemandAnswer:
    """Which newcomers join, and which streams that think only get memory that is free.

    What a tenant's share alone could serve joins first; it is served, and others stall, if these
    had more than their shares. What else fits beside all of that joins, too.
    """
    streams = state.streams
    joined: list[IntArray] = []
    held: list[IntArray] = []
    for (part, index), keys in zip(tenancy.alone, tenancy.own_keys, strict=True):
        if part.streams.textless.any():
            answer = rules.join(part, keys)
            joined.append(index.take(answer.join))
            held.append(index.take(answer.held))
    if not joined:
        return DemandAnswer(streams.waiting_index[:0])
    own = np.concatenate(joined)
    admitted = streams.admitted.copy()
    admitted[own] = True
    with_own = dataclasses.replace(state, streams=dataclasses.replace(streams, admitted=admitted))
    more = rules.join(with_own, tenancy.keys)
    join = np.concatenate([own, more.join])
    join = join.take(tenancy.keys.take(join).argsort(kind="stable"))
    both = np.intersect1d(np.concatenate(held), more.held)
    return DemandAnswer(join, both)


class _Line(NamedTuple):
    """The candidates of all tenants in line, as arrays of one length.

    indices: In the state. place: Of each one's tenant. content: It does not displace others now.
    owed: Its tenant's part of the memory has room for it. candidates: How urgent each is.
    """

    indices: IntArray
    place: IntArray
    content: BoolArray
    owed: BoolArray
    candidates: list[Candidate]


class _SharedRoom:
    """What is left of memory and rows, and who has how much of them, while a plan is made."""

    def __init__(self, state: State, config: WorkingSetConfig, tenancy: Tenancy) -> None:
        self.state, self.config, self.view = state, config, tenancy.view
        self.keys = tenancy.keys
        streams, memory = state.streams, state.memory
        leaving = streams.standing.draining_index
        self.running = len(streams.running_index) + len(leaving)
        self.room = Room(memory)
        self.room.give(together(memory, streams, leaving))
        self.room.take(steps(memory, state.growth, self.running, DECODE_TARGET_STEPS))
        self.rows = memory.max_running - len(streams.running_index)
        self.gone: set[int] = set()
        self._runs = streams.running_index
        self.movable = displaceable(state, config)
        self._band = useful_band(state, config, self.movable)
        self._ahead = leeway(state)
        self._found: dict[int, tuple[int, Victims]] = {}
        can = streams.running & streams.preemptible & (streams.generated > 0)
        givers = np.nonzero(can)[0]
        order = turn(self._ahead.take(givers), weights(streams, givers))
        givers = givers.take(order.argsort(kind="stable"))
        # Each list is popped from its end: whose reader has most unread gives way first.
        self._givers = [
            givers[tenancy.view.of.take(givers) == place].tolist()
            for place in range(len(self.view))
        ]

    @property
    def whole(self) -> float:
        """Part of the memory, or of the rows if less, that streams can run in."""
        memory, held = self.state.memory, float(self.view.held.sum())
        free = [self.room.kv / max(memory.kv.total, 1), self.rows / max(memory.max_running, 1)]
        if memory.device.window.total:
            free.append(self.room.window / memory.device.window.total)
        return held + min(free)  # below what is held where the next steps need some of it

    def held(self) -> FloatArray:
        """Part of the memory that each tenant runs in, without what has given way, (k,)."""
        index = self._runs
        if self.gone:
            index = index[~np.isin(index, list(self.gone))]
        return self.view.taken(index)

    def take_from_others(
        self, lacking: Need, rows: int, place: int, most: FloatArray
    ) -> list[tuple[int, Need]] | None:
        """Streams of tenants above their part that free so much, and what each does; None: none do.

        Args:
            lacking: Tokens of each pool.
            rows: That are missing.
            place: Of the tenant that they are for.
            most: Part of the memory that each tenant may have.
        """
        held, (kv, window) = self.held(), lacking
        found: list[tuple[int, Need]] = []
        state = self.state
        while kv > 0 or window > 0 or len(found) < rows:
            over = np.where(held > most, held / most, 0.0)
            over[place] = 0.0
            over[[not line for line in self._givers]] = 0.0
            source = int(over.argmax())
            if over[source] <= 0.0:
                for victim, _ in reversed(found):
                    self._givers[self.view.of.item(victim)].append(victim)
                return None
            victim = self._givers[source].pop()
            if victim in self.gone:
                continue
            streams = state.streams
            freed = need(state.memory, streams.length.item(victim), streams.own.item(victim))
            found.append((victim, freed))
            held = held - self.view.taken(np.array([victim]))
            kv, window = kv - freed[0], window - freed[1]
        self.gone.update(victim for victim, _ in found)
        return found

    def take_by_slack(
        self, lacking: Need, rows: int, candidate: Candidate, place: int, most: FloatArray
    ) -> list[tuple[int, Need]] | None:
        """Streams of its own tenant, or that can bear it, which free so much; None: none do."""
        known = self._found.get(place)
        if known is None or known[0] != len(self.gone):
            movable, band = self.movable, self._band
            ahead, of = self._ahead.take(movable), self.view.of.take(movable)
            may = (of == place) | (self.held() > most).take(of)
            may |= (ahead > STOCKED) & (ahead >= SATURATED * band)
            may &= ~np.isin(movable, list(self.gone))
            victims = Victims(self.state, self.config, movable[may], band[may], self.keys)
            known = len(self.gone), victims
        chosen = known[1].displace(lacking, rows, candidate)
        if chosen is not None:
            self.gone.update(victim for victim, _ in chosen)
        # Those that it has taken, its lists do not have any more.
        self._found[place] = len(self.gone), known[1]
        return chosen


def exchange_by_shares(
    state: State, config: WorkingSetConfig, admission: DemandAnswer, tenancy: Tenancy
) -> Exchange:
    """Plan which streams run next; see the module's docstring.

    Args:
        state: As it is.
        config: Parameters of the policy.
        admission: What joined in this very pass, and which streams that think displace no other.
        tenancy: The tenants.
    """
    streams, memory = state.streams, state.memory
    plan = _SharedRoom(state, config, tenancy)
    line, most = _in_line(state, config, admission, tenancy, plan.whole)
    growing = steps(memory, state.growth, 1, DECODE_TARGET_STEPS)
    wanted_by_each = needs(memory, streams, line.indices, growing).behind(0)
    run: list[int] = []
    preempt: list[Preempt] = []
    for number, index in enumerate(line.indices.tolist()):
        wanted, candidate = wanted_by_each[number], line.candidates[number]
        place = line.place.item(number)
        if plan.rows < 1 or not plan.room.fits(wanted):
            if line.content[number] and (plan.running or run):
                continue
            lacking, rows = plan.room.lacks(wanted), 1 - plan.rows
            chosen = None
            if line.owed[number]:
                chosen = plan.take_from_others(lacking, rows, place, most)
            if chosen is None:
                chosen = plan.take_by_slack(lacking, rows, candidate, place, most)
            if chosen is None:
                continue  # a smaller one behind may still fit
            cause = Cause.EXCHANGE if candidate.reads else Cause.NEWCOMER
            for victim, freed in chosen:
                preempt.append(Preempt(streams.slot.item(victim), cause))
                plan.room.give(freed)
                plan.rows += 1
        plan.room.take(wanted)
        plan.rows -= 1
        run.append(index)
    if not run and not plan.running and len(line.indices):
        run.append(line.indices.item(0))
    return Exchange(tuple(run), tuple(preempt))


def _in_line(
    state: State, config: WorkingSetConfig, admission: DemandAnswer, tenancy: Tenancy, whole: float
) -> tuple[_Line, FloatArray]:
    """The candidates of all tenants, and what part of the memory each tenant may have.

    whole: Part of it that all may have together.
    """
    view, streams = tenancy.view, state.streams
    held = view.held
    asked = held.copy()
    found: list[tuple[IntArray, FloatArray, FloatArray, BoolArray]] = []
    candidates: list[Candidate] = []
    growth = np.zeros(0)
    for place, (part, index) in enumerate(tenancy.alone):
        inner = _inner(admission, index)
        line = in_line(part, inner, tenancy.keys.take(index))
        if not len(line.indices):
            continue
        band = useful_band(part, config, line.indices)
        content = (line.ahead > CONTENT * band) | line.held
        chosen = index.take(line.indices)
        wants = chosen[~content]
        asked[place] += view.taken(wants).item(place)
        found.append((chosen, line.turns, line.keys, content))
        candidates += [line.candidate(number) for number in range(len(chosen))]
    most = level(view, asked, whole)
    if not found:
        empty: IntArray = streams.waiting_index[:0]
        none = np.zeros(0, dtype=np.bool_)
        return _Line(empty, empty, none, none, []), most
    indices, turns, keys, content = (
        np.concatenate(columns) for columns in zip(*found, strict=True)
    )
    place = view.of.take(indices)
    growth = needs(state.memory, streams, indices, (0, 0)).kv / max(state.memory.kv.total, 1)
    growth = np.maximum(growth, 1.0 / max(state.memory.max_running, 1))
    owed = _owed(held, most, place, np.where(content, 0.0, growth)) & ~content
    order = np.lexsort((keys, turns, ~owed))[:CONSIDERED]
    ordered = [candidates[number] for number in order.tolist()]
    return _Line(indices[order], place[order], content[order], owed[order], ordered), most


def _inner(admission: DemandAnswer, index: IntArray) -> DemandAnswer:
    """The answer as far as it is about the streams at `index`, ascending, by their places there."""

    def own(some: IntArray) -> IntArray:
        some = some[np.isin(some, index)]
        return np.asarray(index.searchsorted(some))

    return DemandAnswer(own(admission.join), own(admission.held))


def _owed(held: FloatArray, most: FloatArray, place: IntArray, wants: FloatArray) -> BoolArray:
    """Which candidates fit into what their tenants may have, in their order, shape (m,).

    The first one of a tenant that runs none fits, however large.
    """
    owed = np.zeros(len(place), dtype=np.bool_)
    for each in np.unique(place).tolist():
        own = place == each
        upto = held[each] + wants[own].cumsum()
        fits = upto <= most[each]
        if held[each] <= 0.0 and len(fits):
            fits[0] = True
        owed[own] = fits
    return owed


def above_share(view: TenantView) -> BoolArray:
    """Which streams' tenants run in more than their share of the memory or of its rows, (n,)."""
    return np.asarray((view.held > view.share).take(view.of))
