"""The working-set policy: run streams whose readers are about to stall, preempt those far ahead.

TokenFlow (EuroSys'26, section 4) with the changes that measurement asked for: admission by a demand
test instead of Eq. 4 to 6, selection by least slack with hysteresis instead of the literal utility
(whose penalty has the wrong sign), no first-come-first-served fallback that throws buffers away,
one decode step between prefill chunks when a reader would stall, and a short cycle that also reacts
to arrivals and predicted underruns.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from tokenflow_sgl.contract import (
    Cause,
    Decision,
    IntArray,
    Memory,
    Mode,
    Preempt,
    Standing,
    State,
)
from tokenflow_sgl.contract.needs import NOTHING, Room, leaves, need, steps, together
from tokenflow_sgl.contract.reserve import DECODE_MARGIN_STEPS, DECODE_TARGET_STEPS
from tokenflow_sgl.offload import dearer_to_load, proactive_writes, restore
from tokenflow_sgl.policy.admission_rules import AdmissionRules
from tokenflow_sgl.policy.cadence import next_look
from tokenflow_sgl.policy.config import SLO, WorkingSetConfig
from tokenflow_sgl.policy.deadlines import with_deadlines
from tokenflow_sgl.policy.exchange import exchange
from tokenflow_sgl.policy.pacing import paced, room_for_all
from tokenflow_sgl.policy.parking import next_share, parked, thinned
from tokenflow_sgl.policy.prefill import prefill_gate
from tokenflow_sgl.policy.priority_claims import with_claims
from tokenflow_sgl.policy.queueing import Queue, queue_keys, waiting_queue
from tokenflow_sgl.policy.stress import (
    LOW_SHARE,
    passed_over,
    prefills_stall_readers,
    under_stress,
)
from tokenflow_sgl.policy.tenancy import (
    Service,
    TenantView,
    served,
    tenancy_of,
)
from tokenflow_sgl.policy.tenant_exchange import above_share, exchange_by_shares, join_by_shares
from tokenflow_sgl.policy.tenant_turns import own_step, prefill_turn
from tokenflow_sgl.policy.urgency import leeway, turn, weights

HELD_UP_SECONDS = 10.0
"""After SGLang has passed over a newcomer, those of so many seconds are not left to it."""
_NOWHERE: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class WorkingSetMemo:
    """What this policy remembers from pass to pass.

    Attributes:
        planned: When the working set was last planned (-inf: never).
        plan: Slots that the last plan chose to start or resume, most urgent first.
        park_share: Share of the raw decode throughput that parking must keep (1: park none).
        queue: The streams that wait, and what has overtaken them.
        standing, index: Where the streams of `plan` that have not started are, in this standing;
            None: not looked up yet.
        held_up: When SGLang's own policy was last seen to pass over a newcomer (-inf: never).
        decided: The policy decided in the pass before.
        service: What tenants have been given.
        queues: As `queue`, of each tenant by its number.
    """

    planned: float = -np.inf
    plan: tuple[int, ...] = ()
    park_share: float = 1.0
    queue: Queue = field(default_factory=Queue)
    standing: Standing | None = field(default=None, compare=False)
    index: IntArray = field(default_factory=lambda: _NOWHERE, compare=False)
    held_up: float = -np.inf
    decided: bool = True
    service: Service = field(default_factory=Service, compare=False)
    queues: dict[int, Queue] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """What changes about which streams run; those to start or resume are in the memo."""

    memo: WorkingSetMemo
    admit: tuple[int, ...] = ()
    preempt: tuple[Preempt, ...] = ()


class WorkingSetPolicy:
    """`Policy` of this project; see the module's docstring and `WorkingSetConfig`."""

    def __init__(self, config: WorkingSetConfig | None = None) -> None:
        self.config = config or WorkingSetConfig()
        self._rules = AdmissionRules(self.config)

    def decide(self, state: State) -> Decision:
        """One pass: emergencies always, a new plan when one is due, then the prefill gate."""
        memo = (
            state.memo if isinstance(state.memo, WorkingSetMemo) else WorkingSetMemo(decided=False)
        )
        state = with_deadlines(with_claims(state, self.config.priority_weight))
        if self.config.pace and state.streams.streaming.any() and room_for_all(state):
            return self._paced(state, memo)
        held_up, patience = self._held_up(state, memo)
        view = (
            TenantView(state) if state.streams.tenant is not None and len(state.streams) else None
        )
        stress = under_stress(state, patience, memo.decided) or prefills_stall_readers(state)
        # Where tenants have shares, no prompt is computed before it was looked whose turn it is.
        if not (stress or (view is not None and len(state.streams.waiting_index))):
            return _idle(held_up)
        memo = dataclasses.replace(memo, held_up=held_up, decided=True)
        if view is not None:
            memo = dataclasses.replace(memo, service=served(state, view, memo.service))
        due = self._plan_is_due(state, memo.planned)
        if view is not None and len(view) < 2:
            view = None
        plan = self._plan(state, memo, view) if due else self._carry_on(state, memo)
        wanted = plan.memo.index
        preempt = plan.preempt + self._emergency(state, plan.preempt, view)
        run, restores = restore(
            state,
            wanted,
            dearer_to_load(state, wanted),
            ahead=self.config.load_ahead,
            chunks=self.config.load_chunks,
        )
        if not due and not self._resumes_now(state, run):
            run = ()
        tenant_turn = None
        if view is not None:
            step = own_step(state, view, memo.service, run)
            run, begins = tuple(step.tolist()), state.streams.find(step)
            chunk = self.config.prefill_chunk
            tenant_turn = prefill_turn(state, view, memo.service, begins, chunk)
        prefill = prefill_gate(state, self.config, wanted, tenant_turn)
        if state.streams.tenant is not None and prefill.limit is None:
            # Whoever comes next waits for the end of this step.
            prefill = dataclasses.replace(prefill, limit=self.config.prefill_chunk)
        return Decision(
            Mode.WORKING_SET,
            admit=plan.admit,
            preempt=preempt,
            run=run,
            restore=restores,
            write=proactive_writes(state, preempt) if self.config.write_ahead else (),
            prefill=prefill,
            wake=next_look(state, plan.memo.planned, self.config.cycle),
            memo=plan.memo,
        )

    def calm(self, memory: Memory, memo: object) -> Decision | None:
        """What `decide` says where all streams run, and none waits, is paused or is to leave.

        Args:
            memory: As in the state.
            memo: As in the state.

        Returns:
            None: That depends on the streams.
        """
        if self.config.pace or memory.kv.promised or not leaves(memory, NOTHING, LOW_SHARE):
            return None
        held_up = memo.held_up if isinstance(memo, WorkingSetMemo) else -np.inf
        return _idle(held_up)

    def _paced(self, state: State, memo: WorkingSetMemo) -> Decision:
        """No stream has to wait: those far ahead of their readers rest nevertheless."""
        queue = waiting_queue(state, memo.queue, self.config)
        rested, index = paced(state, self.config, queue_keys(state, queue, self.config))
        prefill = prefill_gate(state, self.config, index)
        memo = dataclasses.replace(
            memo, plan=rested.run, queue=queue, standing=None, index=_NOWHERE
        )
        return dataclasses.replace(rested, prefill=prefill, memo=memo)

    # ---- when -----------------------------------------------------------------------

    def _held_up(self, state: State, memo: WorkingSetMemo) -> tuple[float, float]:
        """When SGLang last passed over a newcomer, and how long the next ones may wait.

        Where it has passed over one it will do so with the next ones, which need not wait for that.
        But by objectives alone: there sooner is what the streams that run have gained spent sooner.
        """
        held_up, cycle = memo.held_up, self.config.cycle
        if self.config.admission == SLO:
            return held_up, cycle
        if not memo.decided and passed_over(state, cycle):
            held_up = state.now
        return held_up, -1.0 if state.now - held_up < HELD_UP_SECONDS else cycle

    def _plan_is_due(self, state: State, last: float) -> bool:
        """Every cycle; at once on an arrival, an idle engine or a predicted underrun."""
        standing = state.streams.standing
        if state.now - last >= self.config.cycle:
            return True
        if not len(standing.running_index):
            return True
        _, arrived = standing.waits_since
        if arrived >= last:
            return True
        # A paused stream whose reader minds it before the next cycle; after that, it is planned.
        ahead = leeway(state).take(standing.paused_index)
        return bool(((ahead > 0.0) & (ahead < self.config.cycle)).any())

    # ---- what -----------------------------------------------------------------------

    def _plan(self, state: State, memo: WorkingSetMemo, view: TenantView | None) -> _Plan:
        streams = state.streams
        queue = waiting_queue(state, memo.queue, self.config)
        queues = memo.queues
        if view is None:
            keys = queue_keys(state, queue, self.config)
            admission = self._rules.join(state, keys)
            outcome = exchange(state, self.config, admission, keys)
        else:
            tenancy = tenancy_of(state, self.config, view, memo.service, memo.queues)
            queues = tenancy.queues
            admission = join_by_shares(state, self._rules, tenancy)
            outcome = exchange_by_shares(state, self.config, admission, tenancy)
        share = next_share(state, self.config, memo.park_share)
        run, preempt = outcome.run, outcome.preempt
        rest = thinned(state, parked(state, self.config, share)).tolist()
        if rest:
            run = tuple(i for i in run if i not in set(rest))
            gone = {p.slot for p in preempt}
            preempt += tuple(
                Preempt(int(streams.slot[i]), Cause.PARK)
                for i in rest
                if streams.running[i] and int(streams.slot[i]) not in gone
            )
        index = np.array(run, dtype=np.int64)
        slots = tuple(streams.slot[index].tolist())
        return _Plan(
            WorkingSetMemo(
                *(state.now, slots, share, queue, streams.standing, index, memo.held_up),
                service=memo.service,
                queues=queues,
            ),
            admit=tuple(streams.slot[admission.join].tolist()),
            preempt=preempt,
        )

    def _carry_on(self, state: State, memo: WorkingSetMemo) -> _Plan:
        """Between plans: the last plan's streams that have not started yet."""
        standing = state.streams.standing
        if not memo.plan or memo.standing is standing:
            return _Plan(memo)
        index = standing.find(memo.plan)
        index = index[index >= 0]
        index = index[standing.waiting[index] | standing.paused_or_loading[index]]
        left = tuple(standing.slot[index].tolist())
        return _Plan(dataclasses.replace(memo, plan=left, standing=standing, index=index))

    def _resumes_now(self, state: State, run: tuple[int, ...]) -> bool:
        """Whether what was planned before starts in this pass already.

        With drafts, a resume is in a step of its own, for which all that decode wait. So streams
        resume together, with the next plan, unless a reader minds by then, or a prompt is computed.
        """
        streams = state.streams
        if not run or not state.memory.ahead or not len(streams.running_index):
            return True
        index = streams.find(run)
        soon = leeway(state).take(index) < self.config.cycle
        return bool((soon | streams.waiting.take(index)).any())

    def _emergency(
        self, state: State, leaving: tuple[Preempt, ...], view: TenantView | None = None
    ) -> tuple[Preempt, ...]:
        """Preempt the least urgent streams when the next decode steps would not fit.

        leaving: What is preempted in this pass anyway. view: Tenants; those above their shares
        come first; None: they make no difference.
        """
        streams, memory = state.streams, state.memory
        batch = len(streams.running_index)
        room = Room(memory)
        if batch <= 1 or room.fits(steps(memory, state.growth, batch, DECODE_MARGIN_STEPS)):
            return ()
        soon = streams.draining.copy()
        soon[streams.find([each.slot for each in leaving])] = True
        room.give(together(memory, streams, np.nonzero(soon)[0]))
        can = np.nonzero(streams.running & streams.preemptible & ~soon)[0]
        # Without text there is nothing to be ahead with; readers that stall are hit harder.
        ahead = np.where(streams.thinks[can], 0.0, leeway(state)[can])
        last = -turn(ahead, weights(streams, can))
        order = can[np.argsort(last, kind="stable")]
        if view is not None:
            order = can[np.lexsort((last, ~above_share(view).take(can)))]
        chosen: list[Preempt] = []
        for index in order.tolist():
            left = batch - len(chosen)
            if left <= 1 or room.fits(steps(memory, state.growth, left, DECODE_TARGET_STEPS)):
                break
            chosen.append(Preempt(int(streams.slot[index]), Cause.MEMORY))
            room.give(need(memory, streams.length.item(index), streams.own.item(index)))
        return tuple(chosen)


def _idle(held_up: float) -> Decision:
    """SGLang's own policy decides; held_up: see `WorkingSetMemo`."""
    known = np.isfinite(held_up)
    return Decision(
        Mode.IDLE, memo=WorkingSetMemo(held_up=held_up, decided=False) if known else None
    )
