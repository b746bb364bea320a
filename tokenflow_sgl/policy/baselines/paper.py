"""TokenFlow as printed (EuroSys'26, section 4): the baseline to compare with, not to deploy.

Working set by Eq. 4 and 5, admission by the buffer condition of 4.2.1, selection by the
utility of Eq. 3 with greedy and local search, and the first-come-first-served fallback
of Eq. 6. The printed sign of the penalty can be corrected; Eq. 6 can be switched off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import BoolArray, Cause, Decision, IntArray, Mode, Preempt, State
from tokenflow_sgl.contract.needs import windows
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy.baselines.ordered import still_planned
from tokenflow_sgl.policy.cadence import next_look
from tokenflow_sgl.policy.selection import Penalty, select, utilities
from tokenflow_sgl.policy.stress import under_stress

OVERCOMMIT = 4.0
"""Device memories that the working set may span: M of Eq. 4 includes what is offloaded."""
RELEASE = 0.9
"""Share of the capacity at which the fallback of Eq. 6 ends."""


@dataclass(frozen=True, slots=True)
class PaperConfig:
    """Parameters of the policy as TokenFlow's paper has it.

    interval: scheduling cycle in seconds. conservativeness: mu of 4.2.1. adjustment:
    lambda of Eq. 5. gamma: weight of phi in seconds of generation. penalty: sign of Eq. 3.
    fallback: Eq. 6 on.
    """

    interval: float = 1.0
    conservativeness: float = 2.0
    adjustment: float = 0.5
    gamma: float = 1.0
    penalty: Penalty = Penalty.PRINTED
    fallback: bool = True


@dataclass(frozen=True, slots=True)
class PaperMemo:
    """What this policy remembers from pass to pass.

    Attributes:
        planned: When the last selection was made (-inf: never).
        plan: Slots that it chose to start or resume.
        overloaded: The fallback of Eq. 6 is on.
    """

    planned: float = -np.inf
    plan: tuple[int, ...] = ()
    overloaded: bool = False


class PaperPolicy:
    """`Policy` after the letter of the paper."""

    def __init__(self, config: PaperConfig | None = None) -> None:
        self.config = config or PaperConfig()

    @property
    def interval(self) -> float:
        """Seconds between two selections of the streams that run."""
        return self.config.interval

    def decide(self, state: State) -> Decision:
        """A new selection every interval under stress; the last one in between."""
        if not len(state.streams) or not under_stress(state, patience=0.0):
            return Decision(Mode.IDLE)
        memo = state.memo if isinstance(state.memo, PaperMemo) else PaperMemo()
        running = state.streams.running
        if state.now - memo.planned < self.config.interval and running.any():
            return self._run(state, memo)
        return self._select_anew(state, memo)

    def _select_anew(self, state: State, memo: PaperMemo) -> Decision:
        streams = state.streams
        overloaded = self._overloaded(state, memo)
        joined = np.zeros(0, dtype=np.int64) if overloaded else self._admit(state)
        member = streams.member.copy()
        member[joined] = True
        members = np.nonzero(member)[0]
        chosen = self._select(state, members, first_come=overloaded)
        keep = set(members[chosen].tolist())
        slots = streams.slot
        waiting_to_run = streams.waiting | streams.paused
        run = tuple(int(slots[i]) for i in members.tolist() if i in keep and waiting_to_run[i])
        preempt = tuple(
            Preempt(int(slots[i]), Cause.EXCHANGE)
            for i in members.tolist()
            if i not in keep and streams.running[i] and streams.preemptible[i]
        )
        return self._run(
            state,
            PaperMemo(planned=state.now, plan=run, overloaded=overloaded),
            admit=tuple(slots[joined].tolist()),
            preempt=preempt if run else (),
        )

    def _run(
        self,
        state: State,
        memo: PaperMemo,
        admit: tuple[int, ...] = (),
        preempt: tuple[Preempt, ...] = (),
    ) -> Decision:
        return Decision(
            Mode.WORKING_SET,
            admit=admit,
            preempt=preempt,
            run=still_planned(state, memo.planned, memo.plan),
            wake=next_look(state, memo.planned, self.config.interval),
            memo=memo,
        )

    def _overloaded(self, state: State, memo: PaperMemo) -> bool:
        """Eq. 6: the working set asks for more tokens per second than can be produced."""
        capacity = state.throughput
        if not self.config.fallback or np.isnan(capacity):
            return False
        streams = state.streams
        asked = float(streams.rate[streams.member].sum())
        return asked > (RELEASE if memo.overloaded else 1.0) * capacity

    def _admit(self, state: State) -> IntArray:
        """Eq. 4 and 5, and the buffer condition b >= mu r (evict + load + schedule)."""
        streams, memory, config = state.streams, state.memory, self.config
        live = ~streams.waiting
        length = streams.length
        footprint = max(float(length[live].mean()) if live.any() else float(length.mean()), 1.0)
        static = int(OVERCOMMIT * memory.kv.total / footprint)
        running = int(np.count_nonzero(streams.running))
        allowed = int(static - config.adjustment * (static - running))
        size = int(np.count_nonzero(streams.member))
        switch = 2 * state.costs.load_seconds(footprint) + config.interval
        bears = streams.running & (state.slack >= config.conservativeness * switch)
        spare = memory.kv.free + int(length[bears].sum())
        candidates = np.nonzero(streams.waiting & ~streams.admitted)[0]
        need = np.cumsum(length[candidates])
        fits = int(np.searchsorted(need, spare, side="right"))
        return candidates[: max(min(fits, allowed - size), 0 if size else 1)]

    def _select(self, state: State, members: IntArray, *, first_come: bool) -> BoolArray:
        streams, memory = state.streams, state.memory
        size = streams.length[members]
        running = int(np.count_nonzero(streams.running))
        capacity = memory.kv.total - state.growth.reserve(running, DECODE_TARGET_STEPS)
        rows = memory.max_running
        if memory.window.tokens:
            rows = min(rows, memory.device.window.total // max(windows(memory, size).max(), 1))
        if first_come:
            fits: BoolArray = np.cumsum(size) <= capacity
            fits[rows:] = False
            return fits
        overhead = np.where(
            streams.paused[members],
            state.costs.load_seconds(size.astype(np.float64)),
            0.0,
        )
        utility = utilities(
            state,
            members,
            horizon=self.config.interval,
            overhead=overhead,
            gamma=self.config.gamma,
            penalty=self.config.penalty,
        )
        # Ties go to what runs already: switching costs.
        utility = utility - utility.min() + 1e-6
        utility += 1e-6 * streams.running[members]
        return select(utility, size, capacity, rows)
