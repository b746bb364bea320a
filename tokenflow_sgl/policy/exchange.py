"""Which streams run: the least-slack exchange within device memory.

Candidates (admitted newcomers, streams that are paused or loaded in part) are taken by leeway,
least first: their slack and what their readers tolerate, weighted (`urgency`). A newcomer's counts
as zero at least, so that it comes after those that stall. One that does not fit may displace
running streams, and only if the space then really suffices:

1. saturated ones (leeway at or above 0.8 of their useful band theta): their next tokens
   are worth next to nothing to the reader;
2. sprinters (beyond 2 theta) only for an urgent candidate, least progressed first: they
   are close to their end and free everything soon;
3. others only with hysteresis: for a newcomer if the victim can bear the switch, for a
   paused stream if the victim has clearly more leeway than it.

A stream that thinks has no reader yet. It is taken as a newcomer is, in one order with those that
have not begun (see `queueing`). What comes before it in that order may displace it, and a paused
stream whose reader is about to stall where no reader can give way.
A newcomer whose wait is still tolerated displaces others as a paused stream does.

No stream is displaced in its first `min_run` seconds: a stream gains before it can lose
again, which bounds thrash. A paused stream's slack only falls, so it is served at last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tokenflow_sgl.contract import BoolArray, Cause, FloatArray, IntArray, Preempt, State
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS, decode_reserve
from tokenflow_sgl.policy.admission import Admission
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.urgency import leeway, tolerances, turn, weights

CONSIDERED = 64
"""Candidates that one plan looks at; more could not be switched in one cycle anyway."""
SATURATED = 0.8
"""Share of the band from which a stream counts as saturated."""
SPRINTER = 2.0
"""Multiple of the band beyond which a stream runs for its end."""
CONTENT = 0.5
"""Share of the band above which a paused stream does not displace anybody."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """run: indices to start or resume, most urgent first. preempt: what makes room."""

    run: tuple[int, ...]
    preempt: tuple[Preempt, ...]


def useful_band(state: State, config: WorkingSetConfig, index: IntArray) -> FloatArray:
    """Theta of the streams at `index`: seconds of unread output that still count at full value."""
    length, rate = state.streams.read_length_of(index), state.streams.rate.take(index)
    return np.maximum(config.band * length / rate, config.band_seconds)


def exchange(
    state: State, config: WorkingSetConfig, admission: Admission, queue: FloatArray | None = None
) -> Exchange:
    """Plan which streams run next.

    Args:
        state: As it is.
        config: Parameters of the policy.
        admission: What joined in this very pass, and which streams that think displace no other.
        queue: Key by which streams without text are sorted, shape (n,); None: they all have the
            same. Among equal ones the order of arrival counts.
    """
    streams, memory = state.streams, state.memory
    length = streams.length

    # What is loaded in part is counted as free, so it needs memory as a paused stream does.
    ready = streams.paused | streams.partly_loaded | (streams.waiting & streams.admitted)
    ready[admission.join] = True
    candidates = ready.nonzero()[0]
    if not len(candidates):
        return Exchange((), ())
    keys = np.zeros(len(streams)) if queue is None else queue
    held = np.zeros(len(streams), dtype=np.bool_)
    held[admission.held] = True
    # What has no text yet comes after those that stall: they were promised that they do not.
    textless, ahead = streams.textless[candidates], leeway(state)[candidates]
    tolerated = np.minimum(np.maximum(ahead, 0.0), tolerances(streams, candidates))
    ahead = np.where(textless, tolerated, ahead)
    weight = weights(streams, candidates)
    turns = turn(ahead, weight)
    second = np.where(textless, keys[candidates], -np.inf)
    first = _most_urgent(held[candidates], turns, second)
    candidates, textless = candidates[first], textless[first]
    ahead, weight, turns, second = (each[first] for each in (ahead, weight, turns, second))

    # What drains is as good as free: it is released before the plan can be used up.
    leaving = streams.draining
    drained = int(np.count_nonzero(leaving))
    running = len(streams.running_index) + drained
    room = (
        memory.kv.free
        + int(length[leaving].sum())
        - memory.kv.promised
        - decode_reserve(memory, running, DECODE_TARGET_STEPS)
    )
    rows = memory.max_running - running + drained
    need = length[candidates] + decode_reserve(memory, 1, DECODE_TARGET_STEPS)
    movable = streams.running_index
    movable = movable[_can_be_displaced(state, config, movable)]
    band = useful_band(state, config, np.concatenate([candidates, movable]))
    victims = _Victims(state, config, movable, band[len(candidates) :], keys)
    # What is served already, or is not to take memory from others.
    content = (ahead > CONTENT * band[: len(candidates)]) | held[candidates]

    run: list[int] = []
    preempt: list[Preempt] = []
    # Plain lists: one pass over them is several times faster than indexing arrays.
    for place, (tokens, is_content) in enumerate(zip(need.tolist(), content.tolist(), strict=True)):
        if room < tokens or rows < 1:
            if is_content and (running or run):
                continue
            newcomer = bool(textless[place])
            candidate = _Candidate(
                newcomer and bool(ahead[place] <= 0.0),
                not newcomer,
                *(float(each[place]) for each in (ahead, turns, weight, second)),
            )
            chosen = victims.displace(tokens - room, 1 - rows, candidate)
            if chosen is None:
                # A smaller one behind may still fit. The large one stays first in line, and
                # what runs becomes displaceable for it as its buffer grows.
                continue
            cause = Cause.NEWCOMER if newcomer else Cause.EXCHANGE
            for victim in chosen:
                preempt.append(Preempt(int(streams.slot[victim]), cause))
                room += int(length[victim])
                rows += 1
        room -= tokens
        rows -= 1
        run.append(int(candidates[place]))
    if not run and not running:
        # Nothing runs and nothing fits beside the reserve: the most urgent one goes alone.
        run.append(int(candidates[0]))
    return Exchange(tuple(run), tuple(preempt))


def _most_urgent(held: BoolArray, turns: FloatArray, second: FloatArray) -> IntArray:
    """The first `CONSIDERED` of the candidates: by `turns`, then `second`, the held ones last."""
    near = np.arange(len(turns))
    if len(turns) > CONSIDERED:
        # A long list is not sorted for its head.
        last = np.where(held, np.inf, turns)
        near = (last <= np.partition(last, CONSIDERED)[CONSIDERED]).nonzero()[0]
    order = np.lexsort((second[near], turns[near], held[near]))
    head: IntArray = near[order[:CONSIDERED]]
    return head


def _can_be_displaced(state: State, config: WorkingSetConfig, index: IntArray) -> BoolArray:
    """Which of these running streams may be displaced for others at all."""
    streams = state.streams
    return np.asarray(
        streams.preemptible[index]
        # Where no reader is ahead, there is no slack to give away.
        & streams.streaming[index]
        & (state.now - streams.since[index] >= config.min_run)
        & (streams.generated[index] > 0)
    )


class _Candidate(NamedTuple):
    """How urgent a candidate is.

    newcomer: it has no text, and its wait is not tolerated any more. reads: it has text. ahead: its
    leeway, at least 0 without text. turn, weight: see `urgency`. key: what sorts it among the
    streams without text.
    """

    newcomer: bool
    reads: bool
    ahead: float
    turn: float
    weight: float
    key: float


class _Victims:
    """The running streams in the order in which they may be displaced.

    They are named by their places in `index`.

    Args:
        state: As it is.
        config: Parameters of the policy.
        index: Of the streams that may be displaced at all, shape (m,).
        band: Of each, see `useful_band`.
        keys: By which streams without text are sorted, shape (n,).
    """

    def __init__(
        self,
        state: State,
        config: WorkingSetConfig,
        index: IntArray,
        band: FloatArray,
        keys: FloatArray,
    ) -> None:
        streams = state.streams
        ahead, weight = leeway(state)[index], weights(streams, index)
        turns = turn(ahead, weight)
        thinks = streams.thinks[index]
        sprinting = (state.slack[index] / band > SPRINTER) & ~thinks
        saturated = (ahead / band >= SATURATED) & ~sprinting & ~thinks
        others = ~(saturated | sprinting | thinks)
        # Each list is popped from its end.
        self._saturated = _by(saturated, turns)
        self._sprinters = _by(sprinting, -streams.generated[index])
        self._others = _by(others, turns)
        self._thinkers = _by(thinks, keys[index])
        self._index, self._length, self._keys = index, streams.length[index], keys[index]
        self._ahead, self._turns, self._weight = ahead, turns, weight
        self._config = config
        self._costs = state.costs
        self._out_of_reach: dict[tuple[bool, bool, float], tuple[float, int]] = {}

    def displace(self, tokens: int, rows: int, candidate: _Candidate) -> list[int] | None:
        """Victims that free `tokens` and `rows`, or None (and then none is used up)."""
        # Of a kind, candidates come by ascending leeway and key: a later one may take no more.
        kind = candidate.newcomer, candidate.reads, candidate.weight
        failed = self._out_of_reach.get(kind, (np.inf, 1 << 62))
        if tokens >= failed[0] or rows >= failed[1]:
            return None
        urgent = candidate.newcomer or candidate.ahead < self._config.urgent
        taken: list[tuple[list[int], int]] = []
        freed = 0
        while freed < tokens or len(taken) < rows:
            source = self._next_source(urgent, candidate)
            if source is None:
                for origin, victim in reversed(taken):
                    origin.append(victim)
                if freed < tokens:
                    self._out_of_reach[kind] = (freed + 1, failed[1])
                else:
                    self._out_of_reach[kind] = (failed[0], len(taken) + 1)
                return None
            victim = source.pop()
            taken.append((source, victim))
            freed += int(self._length[victim])
        return [int(self._index[victim]) for _, victim in taken]

    def _next_source(self, urgent: bool, candidate: _Candidate) -> list[int] | None:
        # A band is relative to its stream: never at the cost of one that is more urgent.
        if self._saturated and (
            candidate.newcomer or self._turns[self._saturated[-1]] > candidate.turn
        ):
            return self._saturated
        behind = self._thinkers and (
            candidate.reads or self._keys[self._thinkers[-1]] > candidate.key
        )
        if candidate.newcomer and behind:
            return self._thinkers
        if urgent and self._sprinters:
            return self._sprinters
        if self._others:
            victim = self._others[-1]
            if self._ahead[victim] > self._least(victim, candidate):
                return self._others
        return self._thinkers if urgent and behind else None

    def _least(self, victim: int, candidate: _Candidate) -> float:
        """Leeway that an unsaturated victim must have to be displaced."""
        # Margins are in the victim's favour: they weigh as it does relative to the candidate.
        relative = float(self._weight[victim]) / candidate.weight
        if not candidate.newcomer:
            return max(candidate.ahead, 0.0) + relative * self._config.hysteresis
        # Out and back in: evicted once, loaded once.
        switch = 2 * self._costs.load_seconds(int(self._length[victim]))
        return relative * self._config.safety + self._config.switch_factor * switch


def _by(chosen: BoolArray, key: FloatArray | IntArray) -> list[int]:
    """The chosen places sorted by their ascending keys, as a list to pop from."""
    places = chosen.nonzero()[0]
    ordered: list[int] = places[key[places].argsort(kind="stable")].tolist()
    return ordered
