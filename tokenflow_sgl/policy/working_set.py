"""The working-set policy: serve who is about to stall, preempt who is far ahead.

TokenFlow (EuroSys'26, section 4) with the changes that measurement asked for: admission
by a demand test instead of Eq. 4 to 6, selection by least slack with hysteresis instead
of the literal utility (whose penalty has the wrong sign), no first-come-first-served
fallback that throws buffers away, one decode step between prefill chunks when a reader
would stall, and a short cycle that also reacts to arrivals and predicted underruns.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tokenflow_sgl.policy.admission import admissible
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.decision import Cause, Decision, Mode, Preemption
from tokenflow_sgl.policy.exchange import exchange
from tokenflow_sgl.policy.hiding import hidden_loads
from tokenflow_sgl.policy.pacing import paced, room_for_all
from tokenflow_sgl.policy.parking import next_share, parked, thinned
from tokenflow_sgl.policy.state import Recollection, State
from tokenflow_sgl.policy.stress import (
    DECODE_MARGIN_STEPS,
    DECODE_TARGET_STEPS,
    decode_reserve,
    under_stress,
)
from tokenflow_sgl.policy.writing import written_ahead

SHORTEST_CHUNK = 256
"""Prefill steps below this many tokens cost more in launches than they spare a reader."""


class WorkingSetPolicy:
    """`Policy` of this project; see the module's docstring and `WorkingSetConfig`."""

    def __init__(self, config: WorkingSetConfig | None = None) -> None:
        self.config = config or WorkingSetConfig()

    def decide(self, state: State) -> Decision:
        """One pass: emergencies always, a new plan when one is due, then the prefill gate."""
        if self.config.pace and len(state.streams) and room_for_all(state):
            return paced(state, self.config)
        if not under_stress(state, patience=self.config.cycle):
            return Decision(Mode.IDLE)
        decision = self._plan(state) if self._plan_is_due(state) else self._carry_on(state)
        leaving = {p.slot for p in decision.preempt}
        preempt = decision.preempt + self._emergency(state, leaving)
        run, load = hidden_loads(
            state, decision.run, decision.recompute, ahead=self.config.load_ahead
        )
        return dataclasses.replace(
            decision,
            preempt=preempt,
            write=written_ahead(state, preempt) if self.config.write_ahead else (),
            run=run,
            load=load,
            hold_prefill=self._reader_would_stall(state, decision.run),
            prefill_limit=self._prefill_limit(state),
        )

    # ---- when -----------------------------------------------------------------------

    def _plan_is_due(self, state: State) -> bool:
        """Every cycle; at once on an arrival, an idle engine or a predicted underrun."""
        streams = state.streams
        last = state.recollection.last_cycle
        if state.now - last >= self.config.cycle:
            return True
        if not streams.running.any():
            return True
        if bool((streams.since[streams.waiting] >= last).any()):
            return True
        # A paused reader who runs dry before the next cycle; once dry, it is on the plan.
        slack = streams.next_due[streams.paused] - state.now
        return bool(((slack > 0.0) & (slack < self.config.cycle)).any())

    # ---- what -----------------------------------------------------------------------

    def _plan(self, state: State) -> Decision:
        streams = state.streams
        joined = admissible(state, self.config)
        outcome = exchange(state, self.config, joined)
        share = next_share(state, self.config)
        run, preempt = outcome.run, outcome.preempt
        rest = thinned(state, parked(state, self.config, share)).tolist()
        if rest:
            run = tuple(i for i in run if i not in set(rest))
            gone = {p.slot for p in preempt}
            preempt += tuple(
                Preemption(int(streams.slot[i]), Cause.PARK)
                for i in rest
                if streams.running[i] and int(streams.slot[i]) not in gone
            )
        slots = tuple(streams.slot[list(run)].tolist())
        return Decision(
            Mode.WORKING_SET,
            admit=tuple(streams.slot[joined].tolist()),
            preempt=preempt,
            run=slots,
            recompute=self._recompute(state, run),
            recollection=Recollection(last_cycle=state.now, plan=slots, park_share=share),
        )

    def _carry_on(self, state: State) -> Decision:
        """Between plans: the last plan's streams that have not started yet."""
        if not state.recollection.plan:
            return Decision(Mode.WORKING_SET, recollection=state.recollection)
        streams = state.streams
        is_open = streams.waiting | streams.away
        plan = [slot for slot in state.recollection.plan if slot in streams.index_of]
        left = tuple(slot for slot in plan if is_open[streams.index_of[slot]])
        return Decision(
            Mode.WORKING_SET,
            run=left,
            recompute=self._recompute(state, tuple(streams.index_of[slot] for slot in left)),
            recollection=dataclasses.replace(state.recollection, plan=left),
        )

    def _emergency(self, state: State, leaving: set[int]) -> tuple[Preemption, ...]:
        """Preempt by largest slack when the next decode steps would not fit."""
        streams, memory = state.streams, state.memory
        running = streams.running
        batch = int(np.count_nonzero(running))
        free = memory.device_free - memory.device_promised
        if batch <= 1 or free >= decode_reserve(memory, batch, DECODE_MARGIN_STEPS):
            return ()
        length = streams.length
        soon = streams.draining.copy()
        soon[[streams.index_of[slot] for slot in leaving]] = True
        free += int(length[soon].sum())
        can = np.nonzero(running & streams.preemptible & ~soon)[0]
        order = can[np.argsort(-(streams.next_due[can] - state.now), kind="stable")]
        chosen: list[Preemption] = []
        for index in order.tolist():
            left = batch - len(chosen)
            if left <= 1 or free >= decode_reserve(memory, left, DECODE_TARGET_STEPS):
                break
            chosen.append(Preemption(int(streams.slot[index]), Cause.MEMORY))
            free += int(length[index])
        return tuple(chosen)

    # ---- how ------------------------------------------------------------------------

    def _recompute(self, state: State, run: tuple[int, ...]) -> frozenset[int]:
        """Paused streams that are recomputed: what costs less than its load, and is there sooner.

        Loads queue on the link, prefills on the device; each stream goes where it is done first.
        What is dearer to compute than to load is always loaded: computing holds everybody up, a
        load only those who are in its step. So is the first one, or nothing would ever correct
        a load once measured too dear.
        """
        streams, costs = state.streams, state.costs
        if costs.load is None or costs.prefill is None or not run:
            return frozenset()
        index = np.array(run, dtype=np.int64)
        index = index[streams.paused[index]]
        tokens = streams.length[index].tolist()
        loads = prefills = 0.0
        chosen: list[int] = []
        for slot, length in zip(streams.slot[index].tolist(), tokens, strict=True):
            load, prefill = costs.load_seconds(length), costs.prefill_seconds(length)
            if loads > 0.0 and prefill < load and prefills + prefill < loads + load:
                chosen.append(slot)
                prefills += prefill
            else:
                loads += load
        return frozenset(chosen)

    def _prefill_limit(self, state: State) -> int | None:
        """Tokens of a prefill step that every reader can sit out, or keep pace with.

        Within [`SHORTEST_CHUNK`, prefill_chunk] while somebody decodes; else the engine's own.
        """
        streams, costs = state.streams, state.costs
        running = streams.running
        reading = running & streams.streaming
        if not reading.any():
            return None
        longest = self.config.prefill_chunk
        if costs.prefill is None:
            return longest
        constant, per_token, per_work = costs.prefill
        slack = streams.next_due[reading] - state.now
        # Who decodes beside the prefill gets a token per step: steps as long as he reads one do
        # not make it worse.
        pace = 1.0 / streams.rate[reading]
        seconds = float(np.maximum(slack, pace).min()) - constant
        # The decoding rows take their part of the step, and a chunk attends to what is before it.
        context = float(streams.length[running].sum())
        rows = int(np.count_nonzero(running))
        seconds -= costs.decode_seconds(rows, context) - costs.decode_seconds(0, 0)
        promised, before = state.memory.device_promised, 0
        if promised:
            chunked = streams.prompt[running][streams.generated[running] == 0]
            before = max(int(chunked.max(initial=0)) - promised, 0)
        cost = per_token + per_work * before
        bearable = seconds / cost if cost > 0.0 else np.inf
        return int(np.clip(bearable, min(SHORTEST_CHUNK, longest), longest))

    def _reader_would_stall(self, state: State, run: tuple[int, ...]) -> bool:
        """True if a decode step must come before the next prefill chunk.

        Prefill still gets at least 1 / (1 + prefill_guard) of the time.
        """
        streams, costs = state.streams, state.costs
        reading = streams.running & streams.streaming
        promised = state.memory.device_promised
        if not (run or promised) or costs.prefill is None or not reading.any():
            return False
        spent = state.now - state.last_prefill_end
        if spent >= self.config.prefill_guard * state.last_prefill_seconds:
            return False
        planned = np.array([streams.index_of[slot] for slot in run], dtype=np.int64)
        fresh = planned[streams.waiting[planned]]
        tokens = min(promised + int(streams.prompt[fresh].sum()), self.config.prefill_chunk)
        least = float((streams.next_due[reading] - state.now).min())
        return least < costs.prefill_seconds(tokens)
