"""Policies that rank all streams and run the first ones that fit: what such baselines share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import (
    Cause,
    Decision,
    FloatArray,
    IntArray,
    Mode,
    Preempt,
    Restore,
    State,
    Way,
)
from tokenflow_sgl.contract.needs import Room, need, steps, together
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.offload import proactive_writes, restore
from tokenflow_sgl.policy.cadence import next_look
from tokenflow_sgl.policy.stress import under_stress


@dataclass(frozen=True, slots=True)
class OrderedMemo:
    """What an ordered policy remembers from pass to pass.

    Attributes:
        planned: When the streams were last ranked (-inf: never).
        plan: Slots that were chosen to start or resume.
        switches: Preemptions that are left, of a policy with a budget for them.
    """

    planned: float = -np.inf
    plan: tuple[int, ...] = ()
    switches: float = 0.0


def still_planned(state: State, planned: float, plan: tuple[int, ...]) -> tuple[int, ...]:
    """The slots of a plan whose streams are still there; later arrivals may have got the others."""
    place = state.streams.find(np.array(plan, dtype=np.int64))
    same = (place >= 0) & (state.streams.arrival[place] <= planned)
    return tuple(slot for slot, kept in zip(plan, same.tolist(), strict=True) if kept)


class OrderedPolicy(ABC):
    """Every `interval` seconds: rank, take in order what fits the device, preempt the others.

    Every stream is admitted at once: these policies know no working set. Between two rankings, and
    without stress, nothing changes.

    Args:
        interval: Seconds between two rankings while a stream runs.
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
        memo = state.memo if isinstance(state.memo, OrderedMemo) else OrderedMemo()
        if state.now - memo.planned < self.interval and state.streams.running.any():
            return self._run(state, memo)
        return self._choose(state, memo)

    def _choose(self, state: State, memo: OrderedMemo) -> Decision:
        streams, memory = state.streams, state.memory
        there = np.nonzero(~streams.draining)[0]
        rank = self.rank(state, there)
        order = np.argsort(rank, kind="stable")
        order = order[~np.isnan(rank[order])]
        joined = streams.slot[streams.waiting & ~streams.admitted]
        budget = memo.switches + len(joined) * (self._switches or 0.0)
        movable = streams.preemptible[there]
        if self._switches is not None and budget < 1.0:
            movable = np.zeros(len(there), dtype=np.bool_)
        fixed = streams.running[there] & ~movable
        running = int(np.count_nonzero(streams.running))
        room = Room.whole(memory)
        room.take(steps(memory, state.growth, running, DECODE_TARGET_STEPS))
        room.take(together(memory, streams, there[fixed]))
        rows = memory.max_running - int(np.count_nonzero(fixed))
        chosen: list[int] = []
        for place in order.tolist():
            if fixed[place]:
                continue
            index = int(there[place])
            wanted = need(memory, streams.length.item(index), streams.own.item(index))
            if rows > 0 and room.fits(wanted):
                chosen.append(place)
                room.take(wanted)
                rows -= 1
        if not chosen and not running and len(order):
            chosen = [int(order[0])]  # alone it may use the reserve
        kept = set(chosen)
        slots = streams.slot[there]
        run = tuple(int(slots[i]) for i in chosen if not streams.running[there[i]])
        preempt = tuple(
            Preempt(int(slots[i]), Cause.EXCHANGE)
            for i in range(len(there))
            if streams.running[there[i]] and not fixed[i] and i not in kept
        )
        preempt = preempt if run else ()
        return self._run(
            state,
            OrderedMemo(planned=state.now, plan=run, switches=budget - len(preempt)),
            admit=tuple(joined.tolist()),
            preempt=preempt,
        )

    def _run(
        self,
        state: State,
        memo: OrderedMemo,
        *,
        admit: tuple[int, ...] = (),
        preempt: tuple[Preempt, ...] = (),
    ) -> Decision:
        run = still_planned(state, memo.planned, memo.plan)
        restores: tuple[Restore, ...] = ()
        recompute: frozenset[int] = frozenset()
        if self._recompute:
            streams = state.streams
            paused = streams.slot[streams.paused]
            recompute = frozenset(run) & frozenset(paused.tolist())
        if self._ahead:
            index = state.streams.find(run)
            # The others have ended since they were planned.
            run, restores = restore(state, index[index >= 0], recompute, ahead=True)
        else:
            restores = tuple(Restore(slot, Way.RECOMPUTE) for slot in run if slot in recompute)
        return Decision(
            Mode.WORKING_SET,
            admit=admit,
            preempt=preempt,
            run=run,
            restore=restores,
            write=proactive_writes(state, preempt) if self._ahead else (),
            wake=next_look(state, memo.planned, self.interval),
            memo=memo,
        )
