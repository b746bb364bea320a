"""Which stream without text goes first: the one that is soonest done, within bounds.

First come first served wastes most of what is possible where prefills queue: a prompt of 100,000
tokens keeps a hundred short ones waiting. Shortest first has the least mean wait (W. E. Smith,
1956), but starves the long ones. Highest response ratio next (P. Brinch Hansen, 1971: time waited
over time of service, here of the prefill) lets a claim grow with the wait. Here the ratio is of the
time waited and five minutes: about shortest first as long as waits are shorter than that, and what
waits longer catches up. A prompt whose beginning is cached is as long as the rest of it: a later
turn of a chat is short, however long the chat.

Nothing overtakes a request any more once as much work has begun since it came as first come first
served would have made the last one wait for: `overtake` times the most that has waited at a time
since the queue was last empty. So the longest wait is about that of first come first served. One
request in a hundred, those with the longest prefills, may wait six times as long: they are the work
that an engine with too much of it can put off at the least cost to all others. Of all that have
waited since the queue was last empty it is one in a hundred, so the P99 of the waits keeps to the
bound.

Before all but these go the requests that can have their first token in time (`on_time`).

What a model thinks is not read, so its prefill is not all that a request needs before it has text.
Where it thinks, the engine time of its answer counts, as far as that is expected and still to come,
before its prefill and from then on until its thinking has ended. The longer it has thought, the
more is expected, since a few answers take most of the tokens: so short thoughts overtake long ones,
like short prompts long ones. That is close to Gittins' rule for lengths that are not known (J. C.
Gittins, 1979; for jobs of unknown size Aalto, Ayesta and Righter, 2009), and grows with the wait.
The ratio and the bound are weighted by the class, and a wait that the class tolerates does not
count (`urgency`).

A request with a TTFT objective goes before those without as soon as its prefill must begin to meet
it, and counts like any other once that is out of reach.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, Standing, State
from tokenflow_sgl.policy.config import SLO, WorkingSetConfig
from tokenflow_sgl.policy.on_time import in_time
from tokenflow_sgl.policy.supply import modelled
from tokenflow_sgl.policy.urgency import differing_weights, response_turn

SHORTEST_PREFILL = 1e-3
"""Seconds that a prefill counts as at least."""
HASTE = 2.0
"""Multiple of its own prefill, and of the time between two plans, before the last moment at which
an objective makes a request go first: others are in the same step, or in the one under way."""
PUT_OFF = 0.01
"""Share of the requests, those with the longest prefills, that wait longer for the others' sake."""
MOST_PUT_OFF = 200
"""Of these at a time: a queue that is never empty has seen any number."""
FARTHEST = 6.0
"""Multiple of the others' bound at which nothing overtakes these any more."""
LAST_IN_TIME = -1e12
"""Key of the last that can be in time: below the response ratio of any request."""
STAYS = 2.0
"""A stream that thinks and runs counts as if it had waited so many times as long: two that are
alike do not take turns."""


def _none() -> FloatArray:
    return np.zeros(0)


@dataclass(frozen=True, slots=True, eq=False)
class Queue:
    """What is remembered of the streams that wait, as arrays of one length, in arrival order.

    Attributes:
        slot: Of each.
        arrival: Of each; with the slot it names a stream.
        seconds: That it needs until its first text, see `_service`.
        begun: Those of prefills that have begun since it came.
        most: Largest sum of `seconds` since the queue was last empty.
        seen: Streams that have waited since then.
        late: Of these, those that have begun after they had been put off for the others' sake.
        priced: These are seconds; False: tokens, since no prefill's cost was known.
        standing: In which they were seen; while it is the same, the same ones wait.
    """

    slot: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    arrival: FloatArray = field(default_factory=_none)
    seconds: FloatArray = field(default_factory=_none)
    begun: FloatArray = field(default_factory=_none)
    most: float = 0.0
    seen: int = 0
    late: int = 0
    priced: bool = False
    standing: Standing | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Queue):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name))
            for name in ("slot", "arrival", "seconds", "begun")
        )

    def __hash__(self) -> int:
        return hash(self.slot.tobytes())


def waiting_queue(state: State, before: Queue, config: WorkingSetConfig) -> Queue:
    """The streams that wait now, and what has overtaken each of them.

    Args:
        state: As it is.
        before: What was found in the last pass that looked.
        config: Parameters of the policy.
    """
    streams = state.streams
    index = streams.waiting_index
    slot, arrival = streams.slot.take(index), streams.arrival.take(index)
    seconds = _service(state, index)
    priced = state.costs.prefill is not None
    waits, standing = float(seconds.sum()), streams.standing
    if not len(before.slot) or not len(index) or priced is not before.priced:
        # Tokens that have begun cannot be added to seconds.
        none = np.zeros(len(index))
        return Queue(slot, arrival, seconds, none, waits, len(index), 0, priced, standing)
    most, seen = max(before.most, waits), before.seen
    if standing is before.standing or (
        np.array_equal(slot, before.slot) and np.array_equal(arrival, before.arrival)
    ):
        found = before.begun, most, seen, before.late
        return Queue(slot, arrival, seconds, *found, priced, standing)
    place = streams.find(before.slot)
    # Slots are used again, so the arrival must be the same, too.
    stays = (place >= 0) & (streams.arrival[place] == before.arrival)
    stays &= streams.waiting[place]
    stayed = np.zeros(len(streams), dtype=np.bool_)
    stayed[place[stays]] = True
    begun = np.zeros(len(streams))
    # What has ended since then has begun, too. What was aborted counts with it: nothing tells them
    # apart, and so the bound holds.
    begun[place[stays]] = before.begun[stays] + float(before.seconds[~stays].sum())
    seen += int(np.count_nonzero(~stayed[index]))
    gone, late = ~stays, before.late
    if (before.begun[gone] >= config.overtake * before.most).any():
        late += int(np.count_nonzero(_put_off(before, before.begun, config.overtake)[gone]))
    return Queue(slot, arrival, seconds, begun[index], most, seen, late, priced, standing)


def _put_off(queue: Queue, begun: FloatArray, overtake: float) -> BoolArray:
    """Which of them wait for the others' sake, once as much has begun as bounds these.

    begun: As of the queue, weighted or not.
    """
    found = np.zeros(len(begun), dtype=np.bool_)
    left = min(int(PUT_OFF * queue.seen), MOST_PUT_OFF) - queue.late
    if left > 0:
        longest = np.argsort(-queue.seconds, kind="stable")[:left]
        found[longest] = begun[longest] >= overtake * queue.most
    return found


def _service(state: State, index: IntArray) -> FloatArray:
    """Seconds until these waiting streams have text; tokens where the costs are not known."""
    if state.costs.prefill is None:
        return np.maximum(state.streams.uncached[index].astype(np.float64), 1.0)
    seconds = np.maximum(state.prompt_seconds, SHORTEST_PREFILL)
    if state.streams.thinking is not None:
        thinks = state.streams.thinking[index]
        if thinks.any():
            seconds[thinks] += _answer_seconds(state, index[thinks])
    return seconds


def _answer_seconds(state: State, index: IntArray) -> FloatArray:
    """Engine seconds of what these streams are expected to generate yet; 0.0 while unknown.

    How much of it will be thinking is not known.
    """
    streams = state.streams
    length = streams.length[index]
    left = streams.expected_of(index) - streams.generated[index]
    # One price for all that have no text: they are compared.
    context = float(streams.length[streams.textless].mean())
    cost = modelled(state, context, context).token_cost if state.costs.decode else 0.0
    return np.asarray(cost * left * (length + left / 2.0))


def queue_keys(state: State, queue: Queue, config: WorkingSetConfig) -> FloatArray:
    """What sorts the streams without text, shape (n,): the least goes first.

    Among equal ones the order of arrival counts. `queue` is of this state; other streams have 0.
    """
    streams = state.streams
    index = streams.waiting_index
    first = _waited_enough(state, queue, config.overtake)
    if streams.ttft_slo is not None:
        # By itself it takes as long as if it shared no step.
        seconds = np.maximum(queue.seconds, state.prefill_seconds)
        first |= _must_begin(state, index, seconds, config.cycle)
    turns = response_turn(state.now - queue.arrival, queue.seconds, streams, index)
    if config.admission != SLO:
        # There sooner is what the streams that run have gained spent sooner.
        soon = in_time(state, queue.arrival)
        turns[soon] = LAST_IN_TIME - np.arange(len(soon))[::-1]
    # Those that nothing may overtake in the order of their arrival.
    turns[first] = -np.inf
    keys = np.zeros(len(streams))
    keys[index] = turns
    begun = streams.begun_thinking
    if len(begun):
        seconds = np.maximum(_answer_seconds(state, begun), SHORTEST_PREFILL)
        turns = response_turn(state.now - streams.arrival[begun], seconds, streams, begun)
        stays = np.where(turns < 0.0, turns * STAYS, turns / STAYS)
        keys[begun] = np.where(streams.running[begun], stays, turns)
        if config.overtake == 0.0:
            keys[begun] = -np.inf
    return keys


def _waited_enough(state: State, queue: Queue, overtake: float) -> BoolArray:
    """Which of the waiting streams nothing overtakes any more, in the order of the queue."""
    index = state.streams.waiting_index
    weight, tolerance = differing_weights(state.streams, index), state.streams.tolerance
    begun = queue.begun if weight is None else weight * queue.begun
    bound = overtake * queue.most
    enough: BoolArray = begun >= bound
    if tolerance is not None:
        enough &= state.now - queue.arrival >= tolerance.take(index)
    if enough.any():
        enough &= ~_put_off(queue, begun, overtake) | (begun >= FARTHEST * bound)
    return enough


def first_of(index: IntArray, keys: FloatArray | None, most: int | None) -> IntArray:
    """The streams that go first, in their order.

    Args:
        index: Of streams without text, ascending, shape (m,).
        keys: As of `queue_keys`; None: they are all the same.
        most: How many are asked for; None: all.
    """
    if keys is None:
        return index[:most]
    own = keys.take(index)
    if most == 1:
        return index[own.argmin() :][:1] if len(index) else index
    if most is not None and most < len(own):
        # A long queue is not sorted for its head.
        near = own <= np.partition(own, most)[most]
        index, own = index[near], own[near]
    return index[np.argsort(own, kind="stable")][:most]


def _must_begin(state: State, index: IntArray, seconds: FloatArray, cycle: float) -> BoolArray:
    """Which of these streams miss their TTFT objective unless their prefill begins soon.

    cycle: Seconds between two plans. One at least has to see it while it is urgent.
    """
    streams = state.streams
    assert streams.ttft_slo is not None, "some have such an objective"
    left = streams.arrival[index] + streams.ttft_slo[index] - state.now - seconds
    return np.asarray((left >= 0.0) & (left <= HASTE * (seconds + cycle)))
