"""The scheduler that asks a policy, as `engine/core.py` does inside SGLang."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from tokenflow_sgl.contract import (
    CalmPolicy,
    Decision,
    IntArray,
    LengthPredictor,
    Mode,
    Phase,
    Policy,
    State,
    Traits,
    When,
)
from tokenflow_sgl.contract.reserve import Growth
from tokenflow_sgl.costs import Work, attention_work
from tokenflow_sgl.lab.sim.actuator import SimActuator
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.experience import experienced
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.schedulers.prefill_budget import PrefillBudget
from tokenflow_sgl.lab.sim.simulated_state import SimulatedStates
from tokenflow_sgl.lab.sim.simulated_streams import UNTOLD, FloatArray
from tokenflow_sgl.lab.sim.step import Chunk, Step
from tokenflow_sgl.lifecycle import CachedPrefixes, Decider, PausedCopies, SharedPrefixes, apply
from tokenflow_sgl.lifecycle.door import LOOK_EVERY, Door
from tokenflow_sgl.lifecycle.wait_calibration import WaitCalibration
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.outlook import outlook

TOO_LONG = "HTTP 429: the expected wait is longer than the request may wait"
"""What a client is told, in short, whose first token would come too late."""


@dataclass(slots=True)
class _Ran:
    """Steps of one kind, one after the other, of which the first `told` are learned from.

    work: of the first one; each one reads what those before it have decoded. start: seconds. ends:
    of each, seconds. batch: streams that decode. decoded: output tokens of these, by step. fresh:
    first tokens.
    """

    work: Work
    start: float
    ends: list[float]
    batch: int
    decoded: list[int]
    fresh: int
    told: int = 0


class PolicedScheduler(FcfsScheduler):
    """SGLang's scheduler under a policy's decisions.

    Args:
        core: The engine's state.
        policy: Decides; the very object that runs live.
        lengths: Tells it how long answers get.
        config: Tells whether requests are refused.

    Attributes:
        body: Carries the decisions out.
        passes: Decisions so far.
    """

    def __init__(
        self,
        core: SimulatedCore,
        policy: Policy,
        lengths: LengthPredictor,
        config: WorkingSetConfig | None = None,
    ) -> None:
        super().__init__(core)
        self._config = config or WorkingSetConfig()
        self._door, self._calibration = Door(), WaitCalibration()
        self._look_at = 0.0
        self._lengths = lengths
        self._cached = CachedPrefixes(core.streams.phases, core.memory.match)
        self._paused = PausedCopies(core.streams.phases, core.memory.touch)
        self._timer = experienced(core)
        self._policy = policy if isinstance(policy, CalmPolicy) else None
        self._decider = Decider(policy, type(policy).__name__, core.streams.phases)
        self._decision = Decision(Mode.IDLE)
        self._untimed: deque[_Ran] = deque()
        self.body = SimActuator(core)
        prefixes = SharedPrefixes(core.streams.phases, core.memory.path)
        self._states = SimulatedStates(
            core, self.body, self._timer, lengths, self._cached, prefixes
        )
        self.passes = 0

    # ---- planning -------------------------------------------------------------------

    def plan(self, now: float) -> Step | None:
        """The next step under a fresh decision."""
        core = self.core
        self._learn(now)
        self.body.growth = self._growth
        self.body.begin(now)
        present = self._present()
        self._decision = self._decider.decide(
            now,
            len(present),
            self._free_share,
            lambda: self._asked_state(present, now),
            lambda: self._calm(present),
        )
        apply(self._decision, core.streams.phases, self.body, now)
        if core.streams.max_wait is not None and now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            state = self.state(now)
            found = outlook(state, self._config, self._door.usual)
            self._door.look(self._calibration.seen(found, state.streams))
        gate = self._decision.prefill
        holds = len(core.batch) and (gate.hold_mixed or (gate.hold and not self.mixes))
        step = None if holds else self.prefill(now)
        return step or self.decode(now)

    def wakes_at(self, now: float) -> float:
        """When the policy is to be asked again though nothing happens."""
        if not self.present():
            return math.inf
        lands = min(self.body.lands_at, super().wakes_at(now))
        return min(self._asked_at(now), max(lands, now))

    def _asked_at(self, now: float) -> float:
        if not self._follows:
            # Free memory is looked at in every pass once it is scarce.
            return max(self._decider.stands_until(self._free_share), now)
        until = self._decision.until
        return self._decision.wake if until is None else max(until, now)

    @property
    def steady(self) -> bool:
        """Decode steps follow each other while no stream is to start or to leave."""
        core = self.core
        if core.chunked is not None or self.body.draining:
            return False
        if self._follows:
            if not self.body.prefetching and any(
                restore.when is When.AHEAD for restore in self._decision.restore
            ):
                return False  # each pass looks whether there is room by now
            scarce = core.memory.free < 2 * self._growth.headroom * max(len(core.running), 1)
            return not self.offered() and not scarce
        return core.full or not core.waiting

    def refuses(self, stream: int, now: float) -> str | None:
        """Also if the first token would come later than the request's class allows."""
        table, full = self.core.streams, super().refuses(stream, now)
        if full is not None or table.max_wait is None:
            return full
        prompt = int(table.prompt[stream])
        expected = self._door.expected(now, prompt)
        table.expected_wait[stream] = expected
        table.likely_wait[stream] = self._door.likely(expected)
        wait = self._door.refuses(now, prompt, table.max_wait.item(stream))
        return None if wait is None else TOO_LONG

    def ended(self, streams: list[int]) -> None:
        """Learn how long answers get."""
        table = self.core.streams
        self._tell_kinds(np.array(streams, dtype=np.int64))
        for stream in streams:
            length, limit = int(table.answer[stream]), int(table.limit[stream])
            self._lengths.ended(int(table.kind[stream]), length, cut_off=length >= limit)

    def ran(
        self, step: Step, starts: FloatArray, end: float, context: int, made: IntArray | None = None
    ) -> None:
        """Keep what the step tells until its end is known: the live scheduler times iterations."""
        tokens = sum(chunk.tokens for chunk in step.chunks)
        attention = sum(attention_work(chunk.tokens, chunk.prefix) for chunk in step.chunks)
        loaded = sum(chunk.loaded for chunk in step.chunks)
        queued = self.body.prefetching
        crowded = bool(self.body.paused or queued)
        batch = len(step.decode)
        each = [batch] * len(starts) if made is None else made.sum(axis=1).tolist()
        fresh = sum(chunk.last for chunk in step.chunks)
        work = Work(len(step.rows), context, tokens, attention, loaded, crowded, queued=queued)
        ends = [*starts[1:].tolist(), end]
        self._untimed.append(_Ran(work, starts.item(0), ends, batch, each, fresh))

    def _learn(self, now: float) -> None:
        """Learn from the steps that have ended by `now`."""
        timer = self._timer
        while self._untimed:
            ran = self._untimed[0]
            over = bisect_right(ran.ends, now, ran.told)
            if over == ran.told:
                return
            ends, decoded = ran.ends[ran.told : over], ran.decoded[ran.told : over]
            timer.ran(ran.work, ran.start, ends, decoded)
            timer.produced_in(ends, [tokens + ran.fresh for tokens in decoded])
            if self.core.acceptance is not None:
                for tokens in decoded:
                    timer.accepted(ran.batch, tokens)
            if over == len(ran.ends):
                self._untimed.popleft()
                continue
            ran.work = replace(ran.work, context=ran.work.context + sum(decoded))
            ran.start, ran.told = ends[-1], over
            return

    # ---- what admission sees --------------------------------------------------------

    @property
    def _follows(self) -> bool:
        return self._decision.mode is Mode.WORKING_SET

    @property
    def mixes(self) -> bool:
        """Mixed steps while the policy decides."""
        if self.core.options.speculates:
            return False  # a row of a prefill step cannot verify drafts
        return self._follows or self.core.options.enable_mixed_chunk

    def offered(self) -> list[int]:
        """The policy's choice in its order, or all: the paused streams came before the queue."""
        if self.body.offered is None:
            return [*sorted(self.body.paused), *self.core.waiting]
        return list(self.body.offered)

    def prefix(self, stream: int) -> tuple[int, int]:
        """Cached tokens as of stock SGLang; none on the host of streams to be computed again."""
        resident, reach = super().prefix(stream)
        return resident, resident if stream in self.body.recompute else reach

    def reserved(self, stream: int, done: int) -> int:
        """A few decode steps are enough where streams can be preempted."""
        whole = super().reserved(stream, done)
        return min(whole, self._growth.headroom) if self._follows else whole

    def reserved_for_running(self) -> float:
        """Tokens that are reserved for running streams: a few decode steps are enough."""
        if not self._follows:
            return super().reserved_for_running()
        streams, rows = self.core.streams, self.core.batch
        left = (streams.limit[rows] - streams.generated[rows]) * self.ratio
        return float(np.minimum(left, self._growth.headroom).sum())

    def chunk_limit(self) -> int:
        """The policy's limit, and room for the decoding rows beside it."""
        most = super().chunk_limit()
        limit = self._decision.prefill.limit
        if not self._follows or limit is None:
            return most
        rows = len(self.core.batch) if self.mixes else 0
        return min(most, max(limit, 1) + rows)

    def chunk_left(self, stream: int, budget: PrefillBudget) -> int:
        """As the policy says, so that others begin beside it."""
        most = super().chunk_left(stream, budget)
        begun = self._decision.prefill.begun
        return most if begun is None or not self._follows else min(most, max(begun, 1))

    def taken(self, chunks: list[Chunk], now: float) -> None:
        """Note the streams that start or resume with this step."""
        super().taken(chunks, now)
        phases = self.core.streams.phases
        for chunk in chunks:
            if chunk.stream in self.body.paused:
                self.body.resumed(chunk.stream, chunk.loaded, chunk.tokens)
            if not phases.is_in(chunk.stream, Phase.RUNNING):
                phases.move(chunk.stream, Phase.RUNNING, now)

    def requeue(self, stream: int, now: float) -> None:
        """Pause what SGLang threw out in the middle of its answer, as in the engine."""
        if self.core.streams.generated[stream]:
            self.body.hold(stream, now)
        else:
            super().requeue(stream, now)

    # ---- deciding -------------------------------------------------------------------

    @property
    def _growth(self) -> Growth:
        options = self.core.options
        return Growth(options.page_size, self._timer.tokens_per_step, options.ahead)

    @property
    def _free_share(self) -> float:
        core = self.core
        kv = core.memory.free / core.memory.device
        return kv if core.windows is None else min(kv, core.window_free / core.windows.total)

    def present(self) -> list[int]:
        """Streams of the engine, and those that are paused or about to be."""
        return [*super().present(), *self.body.present]

    def _present(self) -> IntArray:
        # The index of a stream is its place in the order of arrival.
        return np.array(sorted(set(self.present())), dtype=np.int64)

    def _tell_kinds(self, rows: IntArray) -> None:
        """Have the predictor say which kind of answer new streams will get."""
        table = self.core.streams
        for stream in rows[table.kind[rows] == UNTOLD].tolist():
            thinks = bool(table.reasoning[stream])
            prompt, limit = int(table.prompt[stream]), int(table.limit[stream])
            traits = Traits(prompt, limit, table.qos_class[stream], thinking=thinks)
            table.kind[stream] = self._lengths.kind(traits)

    def _calm(self, present: IntArray) -> Decision | None:
        """What the policy decides where all streams run and none is to; None: it has to look.

        Most passes of a server with memory to spare: to build the state takes far longer.
        """
        core = self.core
        if self._policy is None or core.waiting or core.chunked is not None or self.body.present:
            return None
        decision = self._policy.calm(self._states.memory, self._decider.memo)
        if decision is not None:
            self.passes += 1
            self._states.pass_by(present)
        return decision

    def _asked_state(self, present: IntArray, now: float) -> State:
        self.passes += 1
        return self._state(present, now)

    def state(self, now: float) -> State:
        """What the policy would see now, which it is not asked about.

        Looks at cached prompts and at the learned lengths as a pass does: both take turns by the
        number of looks.
        """
        return self._state(self._present(), now)

    def _state(self, present: IntArray, now: float) -> State:
        self._tell_kinds(present)
        self._cached.look(present)
        self._paused.look(present)
        return self._states.state(present, self._decider.memo, now)
