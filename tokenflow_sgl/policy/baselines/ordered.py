"""Policies that rank all streams and run the first ones that fit: what such baselines share."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from tokenflow_sgl.policy.decision import Cause, Decision, Mode, Preemption
from tokenflow_sgl.policy.hiding import hidden_loads
from tokenflow_sgl.policy.state import FloatArray, IntArray, State
from tokenflow_sgl.policy.stress import DECODE_TARGET_STEPS, decode_reserve, under_stress
from tokenflow_sgl.policy.writing import written_ahead


class OrderedPolicy(ABC):
    """Every `interval` seconds: rank, take in order what fits the device, preempt the others.

    Everybody is admitted at once: these policies know no working set. Between two rankings, and
    without stress, nothing changes.

    Args:
        interval: Seconds between two rankings while somebody runs.
        recompute: Preempted KV is thrown away and recomputed, instead of loaded.
        switches: Preemptions per request, on average; None: as many as the ranking asks for.
        ahead: KV is written to the host while streams run, and loaded beside the steps.
    """

    def __init__(
        self,
        interval: float,
        *,
        recompute: bool = False,
        switches: float | None = None,
        ahead: bool = False,
    ) -> None:
        self.interval = interval
        self._ahead = ahead
        self._recompute = recompute
        self._switches = switches

    @abstractmethod
    def rank(self, state: State, index: IntArray) -> FloatArray:
        """What orders the streams at `index`: the least first. NaN: not worth running now."""

    def decide(self, state: State) -> Decision:
        """A new choice every interval under stress; the last one in between."""
        if not len(state.streams) or not under_stress(state, patience=0.0):
            return Decision(Mode.IDLE)
        last = state.recollection
        if state.now - last.last_cycle < self.interval and state.streams.running.any():
            return self._run(state, last.plan, recollection=last)
        return self._choose(state)

    def _choose(self, state: State) -> Decision:
        streams, memory = state.streams, state.memory
        there = np.nonzero(~streams.draining)[0]
        rank = self.rank(state, there)
        order = np.argsort(rank, kind="stable")
        order = order[~np.isnan(rank[order])]
        size = streams.length[there]
        joined = streams.slot[streams.waiting & ~streams.admitted]
        budget = state.recollection.switches + len(joined) * (self._switches or 0.0)
        movable = streams.preemptible[there]
        if self._switches is not None and budget < 1.0:
            movable = np.zeros(len(there), dtype=np.bool_)
        fixed = streams.running[there] & ~movable
        running = int(np.count_nonzero(streams.running))
        room = memory.device_total - decode_reserve(memory, running, DECODE_TARGET_STEPS)
        room -= int(size[fixed].sum())
        rows = memory.max_running - int(np.count_nonzero(fixed))
        chosen: list[int] = []
        for place in order.tolist():
            if fixed[place]:
                continue
            if size[place] <= room and rows > 0:
                chosen.append(place)
                room -= int(size[place])
                rows -= 1
        if not chosen and not running and len(order):
            chosen = [int(order[0])]  # alone it may use the reserve
        kept = set(chosen)
        slots = streams.slot[there]
        run = tuple(int(slots[i]) for i in chosen if not streams.running[there[i]])
        preempt = tuple(
            Preemption(int(slots[i]), Cause.EXCHANGE)
            for i in range(len(there))
            if streams.running[there[i]] and not fixed[i] and i not in kept
        )
        preempt = preempt if run else ()
        return self._run(
            state,
            run,
            admit=tuple(joined.tolist()),
            preempt=preempt,
            recollection=dataclasses.replace(
                state.recollection,
                last_cycle=state.now,
                plan=run,
                switches=budget - len(preempt),
            ),
        )

    def _run(
        self,
        state: State,
        run: tuple[int, ...],
        preempt: tuple[Preemption, ...] = (),
        **rest: Any,
    ) -> Decision:
        recompute: frozenset[int] = frozenset()
        if self._recompute:
            streams = state.streams
            paused = streams.slot[streams.paused]
            recompute = frozenset(run) & frozenset(paused.tolist())
        load: tuple[int, ...] = ()
        if self._ahead:
            run, load = hidden_loads(state, run, recompute, ahead=True)
        return Decision(
            Mode.WORKING_SET,
            preempt=preempt,
            run=run,
            recompute=recompute,
            load=load,
            write=written_ahead(state, preempt) if self._ahead else (),
            **rest,
        )
