"""The scheduler that asks a policy, as `engine/scheduler.py` does inside SGLang."""

from __future__ import annotations

import math

import numpy as np

from tokenflow_sgl.costs import Work, attention_work
from tokenflow_sgl.policy import (
    Decision,
    Memory,
    Mode,
    OutputLengths,
    Phase,
    Policy,
    Recollection,
    State,
)
from tokenflow_sgl.policy import Streams as Seen
from tokenflow_sgl.policy.stress import DECODE_TARGET_STEPS
from tokenflow_sgl.sim.core import Core
from tokenflow_sgl.sim.experience import experienced
from tokenflow_sgl.sim.schedulers.stock import StockScheduler
from tokenflow_sgl.sim.step import Chunk, Step
from tokenflow_sgl.sim.streams import FloatArray, IntArray

IDLE_SECONDS = 0.25
AMPLE_SHARE = 0.2
"""How long an idle decision stands, and above which share of free memory: as in the engine."""


class PolicedScheduler(StockScheduler):
    """SGLang's scheduler under a policy's decisions.

    Args:
        core: The engine's state.
        policy: Decides; the very object that runs live.
        cycle: Seconds between two of its plans.
    """

    def __init__(self, core: Core, policy: Policy, cycle: float) -> None:
        super().__init__(core)
        self._policy = policy
        self._cycle = cycle
        self._lengths = OutputLengths()
        self._timer = experienced(core)
        self._recollection = Recollection()
        self._decision = Decision(Mode.IDLE)
        self._offered: list[int] = []
        self._paused: dict[int, None] = {}
        self._draining: list[int] = []
        self._loading = (-1, math.inf)  # the stream whose KV is coming back, and until when
        self._idle_until = -math.inf
        self._known = (-1, -1)
        self.preempted = self.resumed = self.loaded = self.recomputed = self.passes = 0
        self.written = self.needed = self.held = self.loaded_ahead = 0
        self.tails: list[int] = []
        self._ahead: dict[int, int] = {}  # tokens copied ahead since the stream was taken up

    # ---- planning -------------------------------------------------------------------

    def plan(self, now: float) -> Step | None:
        """The next step under a fresh decision."""
        self._park_draining(now)
        self._end_loads(now)
        self._decision = self._decide(now)
        self._write(now)
        self._preempt(now)
        self._load(now)
        admitted = np.array(self._decision.admit, dtype=np.int64)
        self.core.streams.admitted[admitted] = True
        self._offered = self._offer()
        if self._follows and self._offered:
            self.core.full = False
        holds = self._decision.hold_prefill and not self.mixes and len(self.core.running)
        step = None if holds else self.prefill(now)
        return step or self.decode(now)

    def wakes_at(self, now: float) -> float:
        """The next plan of the policy: its cycle, or a paused reader who is about to run dry."""
        if not len(self._present()):
            return math.inf
        return min(self._plans_at(now), max(self._loading[1], now))

    def _plans_at(self, now: float) -> float:
        if not self._follows:
            # Free memory is looked at in every pass once it is scarce.
            ample = self.core.memory.free >= AMPLE_SHARE * self.core.memory.device
            return self._idle_until if ample else now
        if self._decision.until is not None:
            return max(self._decision.until, now)
        moment = self._recollection.last_cycle + self._cycle
        paused = np.fromiter(self._paused, dtype=np.int64)
        due = self.core.streams.due[paused]
        due = due[due > now]
        if len(due):
            moment = min(moment, max(float(due.min()) - self._cycle, now))
        return moment

    @property
    def steady(self) -> bool:
        """Decode steps follow each other while nobody is to start and nobody leaves."""
        core = self.core
        if core.chunked is not None or self._draining:
            return False
        if self._follows:
            steps = 2 * max(DECODE_TARGET_STEPS, core.options.page_size)
            scarce = core.memory.free < steps * max(len(core.running), 1)
            return not self._offered and not scarce
        return core.full or not core.waiting

    def ran(self, step: Step, starts: FloatArray, end: float, context: int) -> None:
        """Learn from the step, as the live scheduler does from its iterations."""
        tokens = sum(chunk.tokens for chunk in step.chunks)
        attention = sum(attention_work(chunk.tokens, chunk.prefix) for chunk in step.chunks)
        loaded = sum(chunk.loaded for chunk in step.chunks)
        crowded = bool(self._paused)
        batch = len(step.decode)
        for number, start in enumerate(starts.tolist()):
            self._timer.begin(start)
            grown = context + number * batch
            self._timer.launch(Work(batch, grown, tokens, attention, loaded, crowded))
        self._timer.begin(end)
        self._timer.launch(None)
        fresh = sum(chunk.last for chunk in step.chunks)
        self._timer.produced(end, batch * len(starts) + fresh)

    # ---- what admission sees --------------------------------------------------------

    @property
    def _follows(self) -> bool:
        return self._decision.mode is Mode.WORKING_SET

    @property
    def mixes(self) -> bool:
        """Mixed steps while the policy decides."""
        return self._follows or self.core.options.enable_mixed_chunk

    def offered(self) -> list[int]:
        """The policy's choice in its order."""
        return self._offered

    def prefix(self, stream: int) -> tuple[int, int]:
        """As stock; the policy may want a paused stream's KV computed rather than loaded."""
        resident, reach = super().prefix(stream)
        return resident, resident if stream in self._decision.recompute else reach

    def reserved(self, stream: int, done: int) -> int:
        """A few decode steps are enough where streams can be preempted."""
        whole = super().reserved(stream, done)
        return min(whole, DECODE_TARGET_STEPS) if self._follows else whole

    def reserved_for_running(self) -> float:
        """The same for those that run."""
        if not self._follows:
            return super().reserved_for_running()
        streams, rows = self.core.streams, self.core.running
        left = (streams.limit[rows] - streams.generated[rows]) * self.ratio
        return float(np.minimum(left, DECODE_TARGET_STEPS).sum())

    def chunk_limit(self) -> int:
        """The policy's limit, and room for the decoding rows beside it."""
        most = super().chunk_limit()
        if not self._follows or self._decision.prefill_limit is None:
            return most
        rows = len(self.core.running) if self.mixes else 0
        return min(most, max(self._decision.prefill_limit, 1) + rows)

    def taken(self, chunks: list[Chunk], now: float) -> None:
        """Streams start or resume."""
        super().taken(chunks, now)
        for chunk in chunks:
            if chunk.stream in self._paused:
                del self._paused[chunk.stream]
                self.resumed += 1
                self.loaded += chunk.loaded
                self.recomputed += chunk.tokens
            if self.core.streams.phase[chunk.stream] != Phase.RUNNING:
                self.core.streams.move(chunk.stream, Phase.RUNNING, now)

    # ---- deciding -------------------------------------------------------------------

    def _decide(self, now: float) -> Decision:
        present = self._present()
        known = (len(present), int(present.sum()))
        free = self.core.memory.free
        ample = free >= AMPLE_SHARE * self.core.memory.device
        idle = self._decision.mode is Mode.IDLE
        if not len(present) or (idle and ample and known == self._known and now < self._idle_until):
            return Decision(Mode.IDLE, recollection=self._recollection)
        self.passes += 1
        decision = self._policy.decide(self._state(present, now))
        self._recollection = decision.recollection
        if decision.mode is Mode.IDLE:
            self._idle_until, self._known = now + IDLE_SECONDS, known
        return decision

    def present(self) -> list[int]:
        """Those of the engine, and who is paused or about to be."""
        return [*super().present(), *self._paused, *self._draining]

    def _present(self) -> IntArray:
        # The index of a stream is its place in the order of arrival.
        return np.unique(np.array(self.present(), dtype=np.int64))

    def _state(self, present: IntArray, now: float) -> State:
        core, streams, memory = self.core, self.core.streams, self.core.memory
        phase = streams.phase[present]
        generated = streams.generated[present]
        runs = phase == Phase.RUNNING.value
        preemptible = runs.copy()
        promised = 0
        if core.chunked is not None:
            preemptible &= present != core.chunked
            promised = self.total(core.chunked) - core.computed
        unwritten = np.zeros(len(present), dtype=np.int64)
        unwritten[runs] = core.unwritten(present[runs])
        expected = self._lengths.expected(generated, streams.limit[present])
        return State(
            now=now,
            streams=Seen(
                slot=present,
                phase=phase,
                arrival=streams.arrival[present],
                rate=streams.rate[present],
                next_due=streams.due[present],
                prompt=streams.prompt[present],
                generated=generated,
                expected=expected,
                since=streams.since[present],
                admitted=streams.admitted[present],
                preemptible=preemptible,
                streaming=np.ones(len(present), dtype=np.bool_),
                ready=streams.ready[present],
                unwritten=unwritten,
            ),
            memory=Memory(
                device_total=memory.device,
                device_free=memory.free,
                device_promised=promised,
                host_total=memory.host,
                page_size=core.options.page_size,
                max_running=core.options.max_running_requests,
            ),
            costs=self._timer.costs(),
            last_prefill_end=self._timer.last_prefill_end,
            last_prefill_seconds=self._timer.last_prefill_seconds,
            throughput=self._timer.throughput(),
            kv_rate=self._timer.kv_rate(),
            prefill_share=self._timer.prefill_share(),
            links=core.device.links(now),
            recollection=self._recollection,
        )

    def _offer(self) -> list[int]:
        core = self.core
        loading = self._loading[0]
        paused = sorted(self._paused.keys() - {loading})
        if not self._follows:
            return [*paused, *core.waiting]
        there = {*core.waiting, *paused}
        chosen = [stream for stream in self._decision.run if stream in there]
        busy = len(core.running) or core.chunked is not None or self._draining or loading >= 0
        if not chosen and not busy and self._decision.until is None:
            return [*paused, *core.waiting]
        return chosen

    # ---- pausing --------------------------------------------------------------------

    def _write(self, now: float) -> None:
        for write in self._decision.write:
            copied = self.core.write(write.slot, now, write.tokens)
            self.written += copied
            self._ahead[write.slot] = self._ahead.get(write.slot, 0) + copied

    def _load(self, now: float) -> None:
        # One at a time, as the engine does.
        wanted = [stream for stream in self._decision.load if stream in self._paused]
        if self._loading[0] >= 0 or not wanted:
            return
        found = self.core.load(wanted[0], now)
        if found is not None:
            self.loaded_ahead += found[0]
            self._loading = wanted[0], found[1]
            self.core.streams.move(wanted[0], Phase.LOADING, now)

    def _end_loads(self, now: float) -> None:
        stream, ends = self._loading
        if ends <= now:
            self._loading = -1, math.inf
            self.core.loaded(stream, now)
            self.core.streams.move(stream, Phase.PAUSED, now)

    def _preempt(self, now: float) -> None:
        core = self.core
        running = set(core.running.tolist())
        for preemption in self._decision.preempt:
            stream = preemption.slot
            if stream in running and stream != core.chunked:
                running.discard(stream)
                core.running = core.running[core.running != stream]
                core.streams.move(stream, Phase.DRAINING, now)
                self._draining.append(stream)
                self.preempted += 1
                core.full = False

    def _park_draining(self, now: float) -> None:
        """Their last results are there: their KV goes to the tree, and to the host."""
        core = self.core
        for stream in self._draining:
            self.tails.append(int(core.unwritten(np.array([stream]))[0]))
            self.needed += self._ahead.pop(stream, 0)
            self.held += int(core.length(np.array([stream]))[0])
            core.park(stream, now)
            core.streams.move(stream, Phase.PAUSED, now)
            self._paused[stream] = None
        self._draining = []
