"""Tenants: what share of the server each has, and what it has been given lately.

Under contention the engine's time and memory go by weighted fair shares over tenants, and within a
tenant by the policy as it is without any. Three things follow from one another:

- A *server of its share alone*: the state that a tenant's streams would make on a server with the
  tenant's share of the memory, and step times longer by as much (`TenantView.alone`). Its newcomers
  are put in order and join there, whatever others ask for.
- A *counter* of service per tenant (`Service`), as in VTC (Y. Sheng et al., "Fairness in Serving
  Large Language Models", OSDI'24): the engine seconds of its prefills and its tokens decoded, over
  its weight. The one with the least is next, the newcomer's own prefill counted in (`due`). A
  tenant that comes is lifted to the least of those there, so that being away saves up nothing, and
  none is ever further behind than `CREDIT`. Only what is given while streams wait or take turns is
  counted: else it is taken from no other.
- A *level* of memory (`level`): weighted max-min fair, what one does not ask for is the others'.
  Above it a tenant's streams give way.
"""

from __future__ import annotations

import dataclasses
import heapq
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, Memory, Pool, State, Tier
from tokenflow_sgl.contract.needs import NOTHING, needs
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.queueing import Queue, first_of, queue_keys, waiting_queue

CREDIT = 10.0
"""Engine seconds, over the weight, that a tenant may at most be behind the one that got most: so
long another may wait for its sake once it asks for more than its share."""
WELCOME = 0.5
"""The same for one that comes: so it does not wait for the end of what others have begun."""
LATELY = 10.0
"""Seconds of memory of the share of time that a tenant's prefills take."""

_NO_SLOTS: IntArray = np.zeros(0, dtype=np.int64)
_NO_TIMES: FloatArray = np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What tenants have been given so far; empty before the first look.

    Attributes:
        served: Engine seconds over the weight by tenant, the least of those there 0. Tenants that
            are away keep theirs.
        prefilled: Engine seconds of prefills by tenant, those of `LATELY` ago at 1 / e.
        left: Engine seconds of a prefill under way that are still to come, by tenant: they are not
            among those served.
        part: Slot of the stream whose prefill that is, and tokens that are left of it.
        looked: When this was found.
        there: Tenants that had streams then.
        slot, arrival: Of the streams seen then; together they name one.
        generated: Output tokens of each.
        waited: Which of them waited.
    """

    served: dict[int, float] = field(default_factory=dict)
    prefilled: dict[int, float] = field(default_factory=dict)
    left: dict[int, float] = field(default_factory=dict)
    part: tuple[int, int] | None = None
    looked: float = -np.inf
    there: frozenset[int] = frozenset()
    slot: IntArray = field(default_factory=lambda: _NO_SLOTS)
    arrival: FloatArray = field(default_factory=lambda: _NO_TIMES)
    generated: IntArray = field(default_factory=lambda: _NO_SLOTS)
    waited: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))


class TenantView:
    """The tenants that have streams in a state, named by their places in `ids`.

    Args:
        state: Whose `streams.tenant` is there.

    Attributes:
        ids: Their numbers, ascending.
        of: Place of each stream's tenant, shape (n,).
        weight: Of each tenant, shape (k,).
        share: Of the server, shape (k,).
    """

    def __init__(self, state: State) -> None:
        streams = state.streams
        assert streams.tenant is not None, "tenants are told apart"
        self._state = state
        self.ids, first, self.of = np.unique(streams.tenant, return_index=True, return_inverse=True)
        self.weight: FloatArray = np.ones(len(self.ids))
        if streams.tenant_weight is not None:
            self.weight = streams.tenant_weight.take(first)
        self.share: FloatArray = self.weight / self.weight.sum()

    def __len__(self) -> int:
        return len(self.ids)

    def streams_of(self, place: int) -> IntArray:
        """Indices of the streams of the tenant at this place."""
        return np.asarray(np.nonzero(self.of == place)[0])

    @cached_property
    def held(self) -> FloatArray:
        """Part of the device's memory, or of its rows if more, that each tenant runs in, (k,)."""
        running = self._state.streams.running_index
        return self.taken(running)

    def taken(self, index: IntArray) -> FloatArray:
        """Part of the memory, or of the rows if more, that the streams at `index` take, (k,)."""
        streams, memory = self._state.streams, self._state.memory
        count = len(self.ids)
        place = self.of.take(index)
        found = needs(memory, streams, index, NOTHING)
        parts = np.bincount(place, found.kv, count) / max(memory.kv.total, 1)
        if found.window is not None:
            window = np.bincount(place, found.window, count) / max(memory.device.window.total, 1)
            parts = np.maximum(parts, window)
        rows = np.bincount(place, minlength=count) / max(memory.max_running, 1)
        return np.asarray(np.maximum(parts, rows))

    def alone(self, place: int, service: Service) -> tuple[State, IntArray]:
        """What the tenant's streams would be on a server of its share, and their indices here."""
        state, share = self._state, float(self.share[place])
        index = self.streams_of(place)
        streams = state.streams.among(index)
        busy = share * LATELY
        prefills = service.prefilled.get(int(self.ids[place]), 0.0) / busy
        return (
            dataclasses.replace(
                state,
                streams=streams,
                memory=_part(state, self, place, share),
                costs=_slower(state.costs, 1.0 / share),
                kv_rate=state.kv_rate * share,
                prefill_share=min(prefills, 1.0),
                memo=None,
            ),
            index,
        )


def _part(state: State, view: TenantView, place: int, share: float) -> Memory:
    """A share of the memory, of which no other tenant has anything."""
    memory, streams = state.memory, state.streams
    own = view.of == place
    there = np.nonzero(own & (streams.running | streams.draining))[0]
    used = int(streams.own.take(there).sum())
    begun = bool((own & streams.running & (streams.generated == 0)).any())
    promised = memory.kv.promised if begun else 0
    window = memory.device.window

    def part(pool: Pool, taken: int = 0, due: int = 0) -> Pool:
        total = int(share * pool.total)
        return Pool(total, max(min(total - taken, pool.total), 0), due)

    device = Tier(
        kv=part(memory.kv, used, promised),
        window=part(window, int(share * max(window.total - window.free, 0))),
        state=part(memory.device.state),
    )
    host = Tier(*(part(pool) for pool in (memory.host.kv, memory.host.window, memory.host.state)))
    rows = max(int(share * memory.max_running), 1)
    return dataclasses.replace(memory, device=device, host=host, max_running=rows)


def _slower(costs: StepCosts, factor: float) -> StepCosts:
    """Steps and copies that take so many times as long."""

    def times(found: tuple[float, ...] | None) -> tuple[float, ...] | None:
        return None if found is None else tuple(factor * each for each in found)

    return dataclasses.replace(
        costs,
        decode=times(costs.decode),  # type: ignore[arg-type]
        prefill=times(costs.prefill),  # type: ignore[arg-type]
        load=times(costs.load),  # type: ignore[arg-type]
    )


def served(state: State, view: TenantView, before: Service) -> Service:
    """What the tenants have been given by now.

    Args:
        state: As it is.
        view: Its tenants.
        before: As of the last look.
    """
    streams, costs = state.streams, state.costs
    given_now = _given_since(state, view, before)
    left: dict[int, float] = {}
    part = _begun(state, before)
    if part is not None:
        promised = state.memory.kv.promised
        computed = float(streams.prompt[part]) - promised
        still = float(costs.prefill_seconds(float(promised), computed))
        left[int(view.ids[view.of[part]])] = still
    faded = float(np.exp(-(state.now - before.looked) / LATELY)) if before.there else 0.0
    lately = {key: seconds * faded for key, seconds in before.prefilled.items()}
    total = dict(before.served)
    ids: list[int] = view.ids.tolist()
    least = min((total[key] for key in ids if key in before.there), default=0.0)
    for spot, key in enumerate(ids):
        prefills, decodes = given_now[0].item(spot), given_now[1].item(spot)
        lately[key] = lately.get(key, 0.0) + prefills
        known = total.get(key, -np.inf)
        if key not in before.there:
            known = max(known, least - WELCOME)
        now = prefills + decodes + before.left.get(key, 0.0) - left.get(key, 0.0)
        total[key] = known + now / view.weight.item(spot)
    return Service(
        served=_bounded(total, ids),
        prefilled=lately,
        left=left,
        part=None if part is None else (streams.slot.item(part), state.memory.kv.promised),
        looked=state.now,
        there=frozenset(ids),
        slot=streams.slot,
        arrival=streams.arrival,
        generated=streams.generated,
        waited=streams.waiting,
    )


def _given_since(state: State, view: TenantView, before: Service) -> tuple[FloatArray, FloatArray]:
    """Engine seconds of prefills that have begun since the last look, and of tokens, each (k,)."""
    streams, costs = state.streams, state.costs
    count = len(view)
    prefills, decodes = np.zeros(count), np.zeros(count)
    place = streams.find(before.slot)
    same = place >= 0
    same[same] = streams.arrival.take(place[same]) == before.arrival[same]
    here = place[same]
    # What waited at the last look and does not now was begun.
    begun = here[before.waited[same] & ~streams.waiting.take(here)]
    unseen = np.ones(len(streams), dtype=np.bool_)
    unseen[here] = False
    if before.there:
        begun = np.concatenate([begun, np.nonzero(unseen & ~streams.waiting)[0]])
    if len(begun):
        seconds = costs.prefill_seconds(streams.uncached.take(begun).astype(np.float64))
        prefills += np.bincount(view.of.take(begun), seconds, count)
    made = np.maximum(streams.generated.take(here) - before.generated[same], 0)
    if made.any() and costs.decode is not None:
        constant, per_row, per_token = costs.decode
        if before.left:
            constant = 0.0  # the part of a prompt in the same step would have taken it anyway
        rows = max(len(streams.running_index), 1)
        each = constant / rows + per_row + per_token * streams.length.take(here)
        decodes += np.bincount(view.of.take(here), made * each / costs.tokens_per_step, count)
    return prefills, decodes


def _begun(state: State, before: Service) -> int | None:
    """Index of the stream of whose prompt earlier steps have computed a part; None: there is none.

    Others whose last part is just being computed have no token yet either.
    """
    streams, promised = state.streams, state.memory.kv.promised
    if not promised:
        return None
    can = streams.running & (streams.generated == 0) & (streams.prompt > promised)
    part = np.nonzero(can)[0]
    if not len(part):
        return None
    if before.part is not None and promised <= before.part[1]:
        known = part[streams.slot.take(part) == before.part[0]]
        if len(known):
            return int(known[0])
    return int(part[streams.since.take(part).argmax()])


def _bounded(total: dict[int, float], there: list[int]) -> dict[int, float]:
    """Counters from 0 on, none of those that are there more than `CREDIT` behind another."""
    most = max(total[key] for key in there)
    for key in there:
        total[key] = max(total[key], most - CREDIT)
    least = min(total[key] for key in there)
    return {key: value - least for key, value in total.items()}


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The tenants in one state, as a plan needs them.

    Attributes:
        view: Which there are.
        service: What they have been given.
        alone: Of each, the state on a server of its share, and the indices of its streams.
        queues: Of each that has streams which wait, by its number.
        own_keys: What sorts the streams without text of each, among themselves.
        keys: What sorts all streams without text, shape (n,).
    """

    view: TenantView
    service: Service
    alone: tuple[tuple[State, IntArray], ...]
    queues: dict[int, Queue]
    own_keys: tuple[FloatArray, ...]
    keys: FloatArray


def tenancy_of(
    state: State,
    config: WorkingSetConfig,
    view: TenantView,
    service: Service,
    queues: dict[int, Queue],
) -> Tenancy:
    """The tenants of a state, and the order of their newcomers.

    Args:
        state: As it is.
        config: Parameters of the policy.
        view: Its tenants.
        service: What they have been given by now.
        queues: What was found in the last plan.
    """
    found: dict[int, Queue] = {}
    own: list[FloatArray] = []
    alone = tuple(view.alone(place, service) for place in range(len(view)))
    for key, (part, _) in zip(view.ids.tolist(), alone, strict=True):
        queue = waiting_queue(part, queues.get(key, Queue()), config)
        own.append(queue_keys(part, queue, config))
        if len(queue.slot):
            found[key] = queue
    keys = _merged(state, view, service, alone, own)
    return Tenancy(view, service, alone, found, tuple(own), keys)


def _merged(
    state: State,
    view: TenantView,
    service: Service,
    alone: tuple[tuple[State, IntArray], ...],
    own: list[FloatArray],
) -> FloatArray:
    """Places of the streams without text in one line, by their `due`.

    Within a tenant by its own keys. A stream that thinks has been counted already.
    """
    streams = state.streams
    seconds = np.zeros(len(streams))
    seconds[streams.waiting_index] = state.prefill_seconds
    seconds /= view.weight.take(view.of)
    dues = due(state, view, service)
    lines: list[list[int]] = []
    for (part, index), keys in zip(alone, own, strict=True):
        textless = np.nonzero(part.streams.textless)[0]
        lines.append(index.take(first_of(textless, keys, None)).tolist()[::-1])
    heap = [(dues.item(line[-1]), place) for place, line in enumerate(lines) if line]
    heapq.heapify(heap)
    merged = np.zeros(len(streams))
    for number in range(sum(len(line) for line in lines)):
        so_far, place = heap[0]
        merged[lines[place].pop()] = number
        if lines[place]:
            heapq.heapreplace(heap, (so_far + seconds.item(lines[place][-1]), place))
        else:
            heapq.heappop(heap)
    return merged


def level(view: TenantView, asked: FloatArray, whole: float) -> FloatArray:
    """Part of the memory that each tenant may have while others want it, shape (k,).

    Weighted max-min fair: who asks for less than its share leaves the rest to the others, by their
    weights. At least the share; infinite where all get what they ask for.

    Args:
        view: The tenants.
        asked: Part of the memory that each asks for, shape (k,).
        whole: Part of it that all may have together.
    """
    if asked.sum() <= whole:
        return np.full(len(view), np.inf)
    order = np.argsort(asked / view.weight, kind="stable")
    left, weights = whole, float(view.weight.sum())
    for place in order.tolist():
        each = left / weights
        if asked[place] > each * view.weight[place]:
            return np.asarray(each * view.weight)
        left -= asked.item(place)
        weights -= view.weight.item(place)
    return np.full(len(view), np.inf)


def given(view: TenantView, service: Service) -> FloatArray:
    """What the tenant of each stream has been given, engine seconds over its weight, (n,)."""
    by_place = np.array([service.served.get(key, 0.0) for key in view.ids.tolist()])
    return np.asarray(by_place.take(view.of))


def due(state: State, view: TenantView, service: Service) -> FloatArray:
    """What each stream's tenant will have been given once its prompt is computed, too, (n,).

    Engine seconds over the weight, the prompt under way included. Who is due least is next, as in
    weighted fair queueing: by what was given alone, a short prompt would wait for the whole of a
    long one whose tenant was given a little less.
    """
    streams = state.streams
    left = np.array([service.left.get(key, 0.0) for key in view.ids.tolist()])
    seconds = left.take(view.of)
    seconds[streams.waiting_index] += state.prefill_seconds
    return np.asarray(given(view, service) + seconds / view.weight.take(view.of))
