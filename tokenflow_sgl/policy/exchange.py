"""Which streams run: the least-slack exchange within device memory.

Candidates (admitted newcomers, paused streams) are taken by slack, least first; a newcomer's
counts as zero, so that it comes after those that stall. One that does not fit may displace
running streams, and only if the space then really suffices:

1. saturated ones (slack at or above 0.8 of their useful band theta): their next tokens
   are worth next to nothing to the reader;
2. sprinters (beyond 2 theta) only for an urgent candidate, least progressed first: they
   are close to their end and free everything soon;
3. others only with hysteresis: for a newcomer if the victim can bear the switch, for a
   paused stream if the victim has clearly more slack than it.

A stream that thinks has no reader yet. It is taken as a newcomer is, in one order with those that
have not begun (see `queueing`). What comes before it in that order may displace it, and a paused
stream whose reader is about to stall where no reader can give way.

No stream is displaced in its first `min_run` seconds: a stream gains before it can lose
again, which bounds thrash. A paused stream's slack only falls, so it is served at last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import BoolArray, Cause, FloatArray, IntArray, Preempt, State
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS, decode_reserve
from tokenflow_sgl.policy.admission import Admission
from tokenflow_sgl.policy.config import WorkingSetConfig

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
        admission: Who joined in this very pass, and which streams that think do not go on.
        queue: Key by which streams without text are sorted, shape (n,); None: they all have the
            same. Among equal ones the order of arrival counts.
    """
    streams, memory = state.streams, state.memory
    slack = state.slack
    length = streams.length

    ready = streams.paused | (streams.waiting & streams.admitted)
    ready[admission.join] = True
    ready[admission.held] = False
    candidates = np.nonzero(ready)[0]
    # What has no text yet comes after those that stall: they were promised that they do not.
    turn = np.where(streams.textless[candidates], 0.0, slack[candidates])
    keys = np.zeros(len(streams)) if queue is None else queue
    second = np.where(streams.textless[candidates], keys[candidates], -np.inf)
    candidates = candidates[np.lexsort((second, turn))][:CONSIDERED]
    stopped = admission.yields[_can_be_displaced(state, config, admission.yields)]
    if not len(candidates) and not len(stopped):
        return Exchange((), ())

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
    thinks = streams.thinks[movable]
    thinkers = np.setdiff1d(movable[thinks], stopped, assume_unique=True)
    movable = movable[~thinks]
    band = useful_band(state, config, np.concatenate([candidates, movable]))
    victims = _Victims(state, config, movable, band[len(candidates) :], thinkers, keys)
    unread = slack[candidates]
    content = unread > CONTENT * band[: len(candidates)]

    run: list[int] = []
    preempt = [Preempt(slot, Cause.NEWCOMER) for slot in streams.slot[stopped].tolist()]
    room += int(length[stopped].sum())
    rows += len(stopped)
    # Plain lists: one pass over them is several times faster than indexing arrays.
    rows_of_candidates = zip(
        candidates.tolist(),
        need.tolist(),
        unread.tolist(),
        content.tolist(),
        streams.textless[candidates].tolist(),
        keys[candidates].tolist(),
        strict=True,
    )
    for index, tokens, ahead, is_content, newcomer, key in rows_of_candidates:
        if room < tokens or rows < 1:
            if is_content and not newcomer and running:
                continue
            chosen = victims.displace(tokens - room, 1 - rows, newcomer, key if newcomer else ahead)
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
        run.append(index)
    if not run and not running and len(candidates):
        # Nothing runs and nothing fits beside the reserve: the most urgent one goes alone.
        run.append(int(candidates[0]))
    return Exchange(tuple(run), tuple(preempt))


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


class _Victims:
    """The running streams in the order in which they may be displaced.

    Args:
        state: As it is.
        config: Parameters of the policy.
        index: Of the streams with a reader that may be displaced at all, shape (m,).
        band: Of each, see `useful_band`.
        thinkers: Indices of those that think and may be displaced at all.
        keys: By which streams without text are sorted, shape (n,).
    """

    def __init__(
        self,
        state: State,
        config: WorkingSetConfig,
        index: IntArray,
        band: FloatArray,
        thinkers: IntArray,
        keys: FloatArray,
    ) -> None:
        streams = state.streams
        slack = state.slack[index]
        ratio = slack / band
        sprinting = ratio > SPRINTER
        saturated = (ratio >= SATURATED) & ~sprinting
        others = ~saturated & ~sprinting
        # Each list is popped from its end.
        self._saturated = _by(index[saturated], slack[saturated])
        self._sprinters = _by(index[sprinting], -streams.generated[index[sprinting]])
        self._others = _by(index[others], slack[others])
        self._thinkers = _by(thinkers, keys[thinkers])
        self._keys = keys
        self._slack = state.slack
        self._length = streams.length
        self._config = config
        self._costs = state.costs
        self._out_of_reach: dict[bool, tuple[float, int]] = {}

    def displace(self, tokens: int, rows: int, newcomer: bool, turn: float) -> list[int] | None:
        """Victims that free `tokens` and `rows`, or None (and then none is used up).

        turn: the candidate's slack; of one without text the key by which it is sorted.
        """
        # Candidates come by ascending turn, so a later one may take no more than an earlier.
        failed = self._out_of_reach.get(newcomer, (np.inf, 1 << 62))
        if tokens >= failed[0] or rows >= failed[1]:
            return None
        taken: list[tuple[list[int], int]] = []
        freed = 0
        while freed < tokens or len(taken) < rows:
            source = self._next_source(newcomer, turn)
            if source is None:
                for origin, victim in reversed(taken):
                    origin.append(victim)
                if freed < tokens:
                    self._out_of_reach[newcomer] = (freed + 1, failed[1])
                else:
                    self._out_of_reach[newcomer] = (failed[0], len(taken) + 1)
                return None
            victim = source.pop()
            taken.append((source, victim))
            freed += int(self._length[victim])
        return [victim for _, victim in taken]

    def _next_source(self, newcomer: bool, turn: float) -> list[int] | None:
        # A band is relative to its stream: never at the cost of a reader closer to a stall.
        if self._saturated and (newcomer or self._slack[self._saturated[-1]] > turn):
            return self._saturated
        urgent = newcomer or turn < self._config.urgent
        if newcomer and self._thinkers and self._keys[self._thinkers[-1]] > turn:
            return self._thinkers
        if urgent and self._sprinters:
            return self._sprinters
        if self._others:
            last = self._others[-1]
            if self._slack[last] > self._least_slack(last, newcomer, turn):
                return self._others
        return self._thinkers if urgent and not newcomer and self._thinkers else None

    def _least_slack(self, victim: int, newcomer: bool, slack: float) -> float:
        """Slack that an unsaturated victim must have to be displaced."""
        if not newcomer:
            return max(slack, 0.0) + self._config.hysteresis
        # Out and back in: evicted once, loaded once.
        switch = 2 * self._costs.load_seconds(int(self._length[victim]))
        return self._config.safety + self._config.switch_factor * switch


def _by(index: IntArray, key: FloatArray | IntArray) -> list[int]:
    """`index` sorted by its ascending keys, as a list to pop from."""
    ordered: list[int] = index[np.argsort(key, kind="stable")].tolist()
    return ordered
