"""Which streams run: the least-slack exchange within device memory.

Candidates (admitted newcomers, streams that are paused or loaded in part) are taken by slack, least
first; a newcomer's counts as zero, so that it comes after those that stall. One that does not fit
may displace running streams, and only if the space then really suffices:

1. saturated ones (slack at or above 0.8 of their useful band theta): their next tokens
   are worth next to nothing to the reader;
2. sprinters (beyond 2 theta) only for an urgent candidate, least progressed first: they
   are close to their end and free everything soon;
3. others only with hysteresis: for a newcomer if the victim can bear the switch, for a
   paused stream if the victim has clearly more slack than it.

A stream that thinks has no reader yet. It is taken as a newcomer is, before those that have not
begun, and nothing displaces it: only where memory for the next steps is missing is it paused.

No stream is displaced in its first `min_run` seconds: a stream gains before it can lose
again, which bounds thrash. A paused stream's slack only falls, so it is served at last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import Cause, FloatArray, IntArray, Preempt, State
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS, decode_reserve
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
    state: State, config: WorkingSetConfig, admitted: IntArray, queue: FloatArray | None = None
) -> Exchange:
    """Plan which streams run next.

    Args:
        state: As it is.
        config: Parameters of the policy.
        admitted: Indices that joined in this very pass.
        queue: Key by which waiting streams are sorted, shape (n,); None: they all have the same.
            Among equal ones the order of arrival counts.
    """
    streams, memory = state.streams, state.memory
    slack = state.slack
    length = streams.length

    # What is loaded in part is counted as free, so it needs memory as a paused stream does.
    ready = streams.paused | streams.partly_loaded | (streams.waiting & streams.admitted)
    ready[admitted] = True
    candidates = np.nonzero(ready)[0]
    # What has no text yet comes after those that stall: they were promised that they do not.
    turn = np.where(streams.textless[candidates], 0.0, slack[candidates])
    second = candidates if queue is None else queue[candidates]
    # Thinking goes on before other streams begin.
    second = np.where(streams.waiting[candidates], second, -np.inf)
    candidates = candidates[np.lexsort((second, turn))][:CONSIDERED]
    if not len(candidates):
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
    movable = _movable(state, config)
    band = useful_band(state, config, np.concatenate([candidates, movable]))
    victims = _Victims(state, config, movable, band[len(candidates) :])
    unread = slack[candidates]
    content = unread > CONTENT * band[: len(candidates)]

    run: list[int] = []
    preempt: list[Preempt] = []
    # Plain lists: one pass over them is several times faster than indexing arrays.
    rows_of_candidates = zip(
        candidates.tolist(),
        need.tolist(),
        unread.tolist(),
        content.tolist(),
        streams.textless[candidates].tolist(),
        strict=True,
    )
    for index, tokens, ahead, is_content, newcomer in rows_of_candidates:
        if room < tokens or rows < 1:
            if is_content and not newcomer and running:
                continue
            chosen = victims.displace(tokens - room, 1 - rows, newcomer, ahead)
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
    if not run and not running:
        # Nothing runs and nothing fits beside the reserve: the most urgent one goes alone.
        run.append(int(candidates[0]))
    return Exchange(tuple(run), tuple(preempt))


def _movable(state: State, config: WorkingSetConfig) -> IntArray:
    """Indices of the running streams that may be displaced for others."""
    streams, running = state.streams, state.streams.running_index
    can = (
        streams.preemptible[running]
        # Where no reader is ahead, there is no slack to give away.
        & streams.streaming[running]
        & (state.now - streams.since[running] >= config.min_run)
        & (streams.generated[running] > 0)
        & ~streams.thinks[running]
    )
    return running[can]


class _Victims:
    """The running streams in the order in which they may be displaced.

    Args:
        state: As it is.
        config: Parameters of the policy.
        index: Of the streams that may be displaced at all, shape (m,).
        band: Of each, see `useful_band`.
    """

    def __init__(
        self, state: State, config: WorkingSetConfig, index: IntArray, band: FloatArray
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
        self._slack = state.slack
        self._length = streams.length
        self._config = config
        self._costs = state.costs
        self._out_of_reach: dict[bool, tuple[float, int]] = {}

    def displace(self, tokens: int, rows: int, newcomer: bool, slack: float) -> list[int] | None:
        """Victims that free `tokens` and `rows`, or None (and then none is used up)."""
        # Candidates come by ascending slack, so a later one may take no more than an earlier.
        failed = self._out_of_reach.get(newcomer, (np.inf, 1 << 62))
        if tokens >= failed[0] or rows >= failed[1]:
            return None
        urgent = newcomer or slack < self._config.urgent
        taken: list[tuple[list[int], int]] = []
        freed = 0
        while freed < tokens or len(taken) < rows:
            source = self._next_source(urgent, newcomer, slack)
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

    def _next_source(self, urgent: bool, newcomer: bool, slack: float) -> list[int] | None:
        # A band is relative to its stream: never at the cost of a reader closer to a stall.
        if self._saturated and (newcomer or self._slack[self._saturated[-1]] > slack):
            return self._saturated
        if urgent and self._sprinters:
            return self._sprinters
        if self._others:
            last = self._others[-1]
            if self._slack[last] > self._least_slack(last, newcomer, slack):
                return self._others
        return None

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
