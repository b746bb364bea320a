"""Who runs: the least-slack exchange within device memory.

Candidates (admitted newcomers, paused streams) are taken by slack, least first. One that
does not fit may displace running streams, and only if the space then really suffices:

1. saturated ones (slack at or above 0.8 of their useful band theta): their next tokens
   are worth next to nothing to the reader;
2. sprinters (beyond 2 theta) only for an urgent candidate, least progressed first: they
   are close to their end and free everything soon;
3. others only with hysteresis: for a newcomer if the victim can bear the switch, for a
   paused stream if the victim has clearly more slack than it.

Nobody is displaced in its first `min_run` seconds: a stream gains before it can lose
again, which bounds thrash. A paused stream's slack only falls, so it is served at last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.decision import Cause, Preemption
from tokenflow_sgl.policy.state import FloatArray, IntArray, Phase, State
from tokenflow_sgl.policy.stress import DECODE_TARGET_STEPS, decode_reserve

CONSIDERED = 128
"""Candidates that one plan looks at; more could not be switched in one cycle anyway."""
SATURATED = 0.8
"""Share of the band from which a stream counts as saturated."""
SPRINTER = 2.0
"""Multiple of the band beyond which a stream runs for its end."""
CONTENT = 0.5
"""Share of the band above which a paused stream does not displace anybody."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """run: indices to start or resume, most urgent first. preempt: who makes room."""

    run: tuple[int, ...]
    preempt: tuple[Preemption, ...]


def useful_band(state: State, config: WorkingSetConfig) -> FloatArray:
    """theta per stream: seconds of unread output that still count at full value."""
    streams = state.streams
    return np.maximum(config.band * streams.expected / streams.rate, config.band_seconds)


def exchange(state: State, config: WorkingSetConfig, admitted: IntArray) -> Exchange:
    """Plan who runs next; `admitted` are the indices that joined in this very pass."""
    streams, memory, now = state.streams, state.memory, state.now
    phase = streams.phase
    slack = streams.next_due - now
    band = useful_band(state, config)
    length = streams.prompt + streams.generated

    ready = phase == Phase.PAUSED
    ready |= (phase == Phase.WAITING) & streams.admitted
    ready[admitted] = True
    candidates = np.nonzero(ready)[0]
    candidates = candidates[np.argsort(slack[candidates], kind="stable")][:CONSIDERED]
    if not len(candidates):
        return Exchange((), ())

    running = int(np.count_nonzero((phase == Phase.RUNNING) | (phase == Phase.DRAINING)))
    # What drains is as good as free: it is released before the plan can be used up.
    leaving = phase == Phase.DRAINING
    room = (
        memory.device_free
        + int(length[leaving].sum())
        - memory.device_promised
        - decode_reserve(memory, running, DECODE_TARGET_STEPS)
    )
    rows = memory.max_running - running + int(np.count_nonzero(leaving))
    need = length + decode_reserve(memory, 1, DECODE_TARGET_STEPS)
    victims = _Victims(state, config, slack, band, length)

    run: list[int] = []
    preempt: list[Preemption] = []
    for index in candidates.tolist():
        newcomer = bool(phase[index] == Phase.WAITING)
        if room < need[index] or rows < 1:
            if not newcomer and slack[index] > CONTENT * band[index] and running:
                continue
            chosen = victims.displace(
                int(need[index] - room), 1 - rows, newcomer, float(slack[index])
            )
            if chosen is None:
                if newcomer:
                    continue
                break
            cause = Cause.NEWCOMER if newcomer else Cause.EXCHANGE
            for victim in chosen:
                preempt.append(Preemption(int(streams.slot[victim]), cause))
                room += int(length[victim])
                rows += 1
        room -= int(need[index])
        rows -= 1
        run.append(index)
    if not run and not running:
        # Nothing runs and nothing fits beside the reserve: the most urgent one goes alone.
        run.append(int(candidates[0]))
    return Exchange(tuple(run), tuple(preempt))


class _Victims:
    """The running streams in the order in which they may be displaced."""

    def __init__(
        self,
        state: State,
        config: WorkingSetConfig,
        slack: FloatArray,
        band: FloatArray,
        length: IntArray,
    ) -> None:
        streams = state.streams
        can = (
            (streams.phase == Phase.RUNNING)
            & streams.preemptible
            & (state.now - streams.since >= config.min_run)
            & (streams.generated > 0)
        )
        index = np.nonzero(can)[0]
        ratio = slack[index] / band[index]
        sprinting = ratio > SPRINTER
        saturated = (ratio >= SATURATED) & ~sprinting
        # Each list is popped from its end.
        self._saturated = _by(index[saturated], slack)
        self._sprinters = _by(index[sprinting], -streams.generated.astype(np.float64))
        self._others = _by(index[~saturated & ~sprinting], slack)
        self._slack = slack
        self._length = length
        self._config = config
        self._bearable = config.safety + config.switch_factor * np.array(
            [2 * state.costs.load_seconds(int(n)) for n in length[self._others]]
        )
        self._bearable_of = dict(zip(self._others, self._bearable.tolist(), strict=True))

    def displace(
        self, tokens: int, rows: int, newcomer: bool, slack: float
    ) -> list[int] | None:
        """Victims that free `tokens` and `rows`, or None (and then nobody is used up)."""
        urgent = newcomer or slack < self._config.urgent
        marks = len(self._saturated), len(self._sprinters), len(self._others)
        taken: list[tuple[list[int], int]] = []
        freed = 0
        while freed < tokens or len(taken) < rows:
            source = self._next_source(urgent, newcomer, slack)
            if source is None:
                for origin, victim in reversed(taken):
                    origin.append(victim)
                assert marks == (len(self._saturated), len(self._sprinters), len(self._others))
                return None
            victim = source.pop()
            taken.append((source, victim))
            freed += int(self._length[victim])
        return [victim for _, victim in taken]

    def _next_source(self, urgent: bool, newcomer: bool, slack: float) -> list[int] | None:
        if self._saturated:
            return self._saturated
        if urgent and self._sprinters:
            return self._sprinters
        if self._others:
            last = self._others[-1]
            threshold = (
                self._bearable_of[last]
                if newcomer
                else max(slack, 0.0) + self._config.hysteresis
            )
            if self._slack[last] > threshold:
                return self._others
        return None


def _by(index: IntArray, key: FloatArray) -> list[int]:
    """`index` sorted by ascending key, as a list to pop from."""
    ordered: list[int] = index[np.argsort(key[index], kind="stable")].tolist()
    return ordered
