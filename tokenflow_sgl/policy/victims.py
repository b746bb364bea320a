"""Who gives way: the running streams in the order in which candidates may displace them.

1. saturated ones (leeway at or above 0.8 of their useful band theta), least progressed first:
   their next tokens are worth next to nothing to the reader, and the others end sooner;
2. sprinters (beyond 2 theta) only for an urgent candidate, least progressed first: they
   are close to their end and free everything soon;
3. others only with hysteresis: for a newcomer if the victim can bear the switch, for a
   paused stream if the victim has clearly more leeway than it.

Streams that think give way to what comes before them in their order, and to a paused stream whose
reader is about to stall where no reader can give way.

Streams free what they share only together. So for an urgent candidate that needs its beginning
brought back all that share another one may leave at once, where that pauses fewer streams than one
by one: each has to be ahead of a paused stream by `min_run`, and can bear a switch for a newcomer.
One by one hardly ever so many are far enough ahead, and the candidate would wait while smaller ones
take turns.

No stream is displaced in its first `min_run` seconds: a stream gains before it can lose
again, which bounds thrash. A paused stream's slack only falls, so it is served at last.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray, State
from tokenflow_sgl.contract.beginnings import HeldBeginnings
from tokenflow_sgl.contract.needs import Need, need
from tokenflow_sgl.policy.candidates import Candidate
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.urgency import leeway, turn, weights

SATURATED = 0.8
"""Share of the band from which a stream counts as saturated."""
SPRINTER = 2.0
"""Multiple of the band beyond which a stream runs for its end."""
FAR = 1 << 62
"""More than any pool has."""
SEARCHES = 4
"""Times in one plan that streams which leave together are looked for in vain."""

_Kind = tuple[bool, bool, float]
"""Of a candidate: see `Candidate`, newcomer, reads and weight."""
_Taken = tuple[list[int], int, Need]
"""A victim: where it is from, its place, and what it frees."""


def displaceable(state: State, config: WorkingSetConfig) -> IntArray:
    """Indices of the running streams that may be displaced for others at all."""
    streams = state.streams
    index = streams.running_index
    can = streams.preemptible.take(index)
    # Where no reader is ahead, there is no slack to give away.
    can &= streams.streaming.take(index)
    can &= state.now - streams.since.take(index) >= config.min_run
    can &= streams.generated.take(index) > 0
    return index[can]


class Victims:
    """Streams that may be displaced, named by their places in `index`.

    Args:
        state: As it is.
        config: Parameters of the policy.
        index: Of the streams that may be displaced at all, shape (m,).
        band: Of each, see `useful_band`.
        keys: By which streams without text are sorted, shape (n,).
        held: Which beginnings those that run hold, kept up to date; None: no two begin alike.
    """

    def __init__(
        self,
        state: State,
        config: WorkingSetConfig,
        index: IntArray,
        band: FloatArray,
        keys: FloatArray,
        held: HeldBeginnings | None = None,
    ) -> None:
        streams = state.streams
        self._ahead = ahead = leeway(state).take(index)
        self._weight = weights(streams, index)
        self._turns = turn(ahead, self._weight)
        bands = ahead / band
        past = bands if streams.tolerance is None else state.slack.take(index) / band
        self._sprints = past > SPRINTER
        self._is_saturated = (bands >= SATURATED) & ~self._sprints
        self._thinks = None if streams.thinking is None else streams.thinking.take(index)
        if self._thinks is not None:
            self._sprints &= ~self._thinks
            self._is_saturated &= ~self._thinks
        self._index, self._streams, self._all_keys = index, streams, keys
        self._length, self._memory = streams.length.take(index), state.memory
        self._own, self._held = streams.own.take(index), held
        self._config = config
        self._costs = state.costs
        self._out_of_reach: dict[_Kind, tuple[int, int, int]] = {}
        self._not_together: dict[_Kind, int] = {}  # tokens that no streams free together
        self._searches = SEARCHES

    # Each list is popped from its end, and only sorted if one is asked of it.

    @cached_property
    def _saturated(self) -> list[int]:
        return _by(self._is_saturated, -self._streams.generated.take(self._index))

    @cached_property
    def _sprinters(self) -> list[int]:
        return _by(self._sprints, -self._streams.generated.take(self._index))

    @cached_property
    def _others(self) -> list[int]:
        others = ~(self._is_saturated | self._sprints)
        return _by(others if self._thinks is None else others & ~self._thinks, self._turns)

    @cached_property
    def _thinkers(self) -> list[int]:
        return [] if self._thinks is None else _by(self._thinks, self._keys)

    @cached_property
    def _keys(self) -> FloatArray:
        return self._all_keys.take(self._index)

    def displace(
        self, lacking: Need, rows: int, candidate: Candidate
    ) -> list[tuple[int, Need]] | None:
        """Victims that free what is lacking and `rows`, and what each does.

        None: there are none such, and none is used up.
        """
        taken = self._one_by_one(lacking, rows, candidate)
        if self._held is None or (taken is not None and len(taken) == 1):
            return None if taken is None else [(self._index.item(v), f) for _, v, f in taken]
        if taken is not None:
            self._put_back(taken)
        together = self._together(self._held, lacking, rows, candidate)
        if taken is not None and not 0 < len(together) < len(taken):
            together = [victim for _, victim, _ in taken]
        if not together:
            return None
        gone = set(together)
        for source in (self._saturated, self._sprinters, self._others, self._thinkers):
            source[:] = [victim for victim in source if victim not in gone]
        return [(self._index.item(victim), self._freed(victim)) for victim in together]

    def _one_by_one(self, lacking: Need, rows: int, candidate: Candidate) -> list[_Taken] | None:
        # Of a kind, candidates come by ascending leeway and key: a later one may take no more.
        kind = candidate.newcomer, candidate.reads, candidate.weight
        kv, window = lacking
        most = self._out_of_reach.get(kind, (FAR, FAR, FAR))
        if kv >= most[0] or window >= most[1] or rows >= most[2]:
            return None
        urgent = self._is_urgent(candidate)
        taken: list[_Taken] = []
        while kv > 0 or window > 0 or len(taken) < rows:
            source = self._next_source(urgent, candidate)
            if source is None:
                self._put_back(taken)
                # All of them leave so much lacking.
                if kv > 0:
                    most = lacking[0] - kv + 1, *most[1:]
                elif window > 0:
                    most = most[0], lacking[1] - window + 1, most[2]
                else:
                    most = *most[:2], len(taken) + 1
                self._out_of_reach[kind] = most
                return None
            victim = source.pop()
            freed = self._freed(victim)
            taken.append((source, victim, freed))
            kv -= freed[0]
            window -= freed[1]
        return taken

    def _put_back(self, taken: list[_Taken]) -> None:
        for source, victim, _ in reversed(taken):
            source.append(victim)
            if self._held is not None:
                self._held.take(self._index.item(victim))

    def _freed(self, victim: int) -> Need:
        """What a victim frees, which leaves."""
        own = self._own.item(victim)
        if self._held is not None:
            own = self._held.give(self._index.item(victim))
        return need(self._memory, self._length.item(victim), own)

    def _together(
        self, held: HeldBeginnings, lacking: Need, rows: int, candidate: Candidate
    ) -> list[int]:
        """Victims that share what they begin with and free enough if all of them leave."""
        kind, wanted = (candidate.newcomer, candidate.reads, candidate.weight), lacking[0]
        if wanted <= 0 or lacking[1] > 0 or not self._is_urgent(candidate):
            return []
        if not self._searches or wanted >= self._not_together.get(kind, FAR):
            return []
        weight = 1.0 if self._weight is None else self._weight
        ahead = self._config.safety if candidate.newcomer else self._config.min_run
        margin = weight / candidate.weight * ahead
        may = self._ahead > max(candidate.ahead, 0.0) + margin
        if self._thinks is not None:
            may = np.where(self._thinks, candidate.reads | (self._keys > candidate.key), may)
        there = np.zeros(len(self._index), dtype=np.bool_)
        for source in (self._saturated, self._sprinters, self._others, self._thinkers):
            there[source] = True
        chosen = np.zeros(len(self._streams), dtype=np.bool_)
        chosen[self._index[may & there]] = True
        found = held.together(chosen, wanted)
        if len(found) < max(rows, 1):
            self._not_together[kind] = wanted
            self._searches -= 1
            return []
        place = dict(zip(self._index.tolist(), range(len(self._index)), strict=True))
        return [place[index] for index in found]

    def _is_urgent(self, candidate: Candidate) -> bool:
        return candidate.newcomer or candidate.ahead < self._config.urgent

    def _next_source(self, urgent: bool, candidate: Candidate) -> list[int] | None:
        # A band is relative to its stream: never at the cost of one that is more urgent.
        if self._saturated and (
            candidate.newcomer or self._turns.item(self._saturated[-1]) > candidate.turn
        ):
            return self._saturated
        behind = self._thinkers and (
            candidate.reads or self._keys.item(self._thinkers[-1]) > candidate.key
        )
        if candidate.newcomer and behind:
            return self._thinkers
        if urgent and self._sprinters:
            return self._sprinters
        if self._others:
            victim = self._others[-1]
            if self._ahead.item(victim) > self._least(victim, candidate):
                return self._others
        return self._thinkers if urgent and behind else None

    def _least(self, victim: int, candidate: Candidate) -> float:
        """Leeway that an unsaturated victim must have to be displaced."""
        # Margins are in the victim's favour: they weigh as it does relative to the candidate.
        weight = 1.0 if self._weight is None else self._weight.item(victim)
        relative = weight / candidate.weight
        if not candidate.newcomer:
            return max(candidate.ahead, 0.0) + relative * self._config.hysteresis
        # Out and back in: evicted once, loaded once.
        switch = 2 * self._costs.load_seconds(self._own.item(victim))
        return relative * self._config.safety + self._config.switch_factor * switch


def _by(chosen: BoolArray, key: FloatArray | IntArray) -> list[int]:
    """The chosen places sorted by their ascending keys, as a list to pop from."""
    places = chosen.nonzero()[0]
    ordered: list[int] = places.take(key.take(places).argsort(kind="stable")).tolist()
    return ordered
