"""SGLang 0.5.23's own scheduler: first come first served, prefill before decode, retraction.

Follows `PrefillAdder`, `PrefillBudget`, `NewTokenRatioTracker` and `ScheduleBatch.retract_decode`
of sglang.srt for one pool of tokens, without priorities.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.schedulers.prefill_budget import PrefillBudget
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray
from tokenflow_sgl.lab.sim.step import NO_STREAM, Chunk, Step

INIT_RATIO, LEAST_FACTOR, DECAY_STEPS = 0.7, 0.14, 600
"""Share of the output still to come that is reserved for a running request: at first, at last as
a part of that, and after how many decode steps."""
FULL = "HTTP 503: The request queue is full."
"""What SGLang tells a client that it turns away."""
RETRACT_STEPS = 20
"""Decode steps for which the ratio makes room after a retraction."""


class FcfsScheduler:
    """Plans steps as SGLang does without any policy of ours.

    Attributes:
        ratio: SGLang's new_token_ratio: share of the answers to come that is reserved.
        retracted: Streams that were thrown out and queue anew.
    """

    def __init__(self, core: SimulatedCore) -> None:
        self.core = core
        self._first = min(INIT_RATIO * core.options.schedule_conservativeness, 1.0)
        self._least = min(self._first * LEAST_FACTOR, 1.0)
        self.ratio = self._first
        self.retracted = 0
        self._deferred = 0  # decode steps that must come before the next prefill

    def plan(self, now: float) -> Step | None:
        """The next step; None: there is nothing to run."""
        # Without running streams SGLang counts the interval down in microseconds.
        if self._deferred and len(self.core.batch):
            return self.decode(now)
        step = self.prefill(now)
        if step is not None:
            self._deferred = self.core.options.prefill_decode_interval
        return step or self.decode(now)

    def idled(self) -> None:
        """Nothing runs. Without any stream SGLang resets the ratio (`on_idle`)."""
        if not self.present():
            self.ratio = self._first

    def wakes_at(self, now: float) -> float:
        """When the plan may change though nothing comes or goes; infinite: never."""
        storage = self.core.storage
        return math.inf if storage is None else storage.wakes_at(now)

    def present(self) -> list[int]:
        """Streams that are here, in no particular order."""
        core = self.core
        chunked = [] if core.chunked is None else [core.chunked]
        return [*core.waiting, *chunked, *core.batch.tolist()]

    @property
    def steady(self) -> bool:
        """Whether decode steps follow each other until something comes or goes."""
        core = self.core
        return core.chunked is None and (core.full or not core.waiting)

    def decoded(self, steps: int) -> None:
        """Note that decode steps were run without a retraction."""
        self._deferred = max(self._deferred - steps, 0)
        decay = (self._first - self._least) / DECAY_STEPS
        self.ratio = max(self.ratio - steps * decay, self._least)

    def ran(
        self, step: Step, starts: FloatArray, end: float, context: int, made: IntArray | None = None
    ) -> None:
        """Stock SGLang learns nothing from its steps."""

    def refuses(self, stream: int, now: float) -> str | None:
        """Why a request that comes now is turned away; None: it may come."""
        most = self.core.options.max_queued_requests
        return FULL if most and len(self.core.waiting) >= most else None

    def ended(self, streams: list[int]) -> None:
        """Stock SGLang learns nothing from its answers."""

    # ---- prefill --------------------------------------------------------------------

    def prefill(self, now: float) -> Step | None:
        """The next prefill step, if SGLang would run one now."""
        core = self.core
        rows = len(core.batch)
        if not rows:
            core.full = False
        offered = self.offered()
        if (core.full or not offered) and core.chunked is None:
            return None
        budget = self.budget()
        chunks: list[Chunk] = []
        if core.chunked is not None:
            stream = core.chunked
            core.join(stream, now)
            left = min(self.total(stream) - core.computed, core.head(stream, core.computed, now))
            room = budget.total if budget.total > 0 else budget.chunk
            tokens = min(left, self.chunk_left(stream, budget), room, core.memory.free)
            if tokens <= 0:
                return None
            chunk = core.chunk_of(stream, core.computed, tokens, 0)
            chunks.append(chunk)
            budget.reserve(tokens, self.reserved(stream, 0) if chunk.last else 0)
        for stream in offered:
            if budget.spent:
                break
            if not core.ready(stream, now):
                continue
            taken = rows + len(chunks)
            if taken >= core.options.max_running_requests and not self.rows_for(
                stream, budget, now
            ):
                core.full = True
                break
            admitted = self.admit(stream, budget, now)
            if admitted is None:
                core.full = bool(chunks) or bool(rows)
                break
            if not admitted.tokens:
                break
            chunks.append(admitted)
            if budget.exhausted:
                core.full = True
                break
        if not chunks:
            return None
        self.taken(chunks, now)
        return self.mixed(Step(NO_STREAM, tuple(chunks)))

    def admit(self, stream: int, budget: PrefillBudget, now: float) -> Chunk | None:
        """The stream's chunk in this step; None: memory forbids it; of no tokens: no room left."""
        core, streams = self.core, self.core.streams
        total = self.total(stream)
        page = core.options.page_size
        # One token at least is computed: something has to say what comes next.
        most = (total - 1) // page * page
        resident, reach = (min(found, most) for found in self.prefix(stream))
        need = total - resident + self.reserved(stream, int(streams.generated[stream])) + page
        # What it finds there and keeps from eviction is no room for the rest.
        if need >= budget.total - core.memory.evictable(stream):
            return None
        prefix = max(resident, reach)
        later = self.reserved(stream, int(streams.generated[stream]))
        if not budget.fits_windows(total - prefix, later):
            return None
        tokens = min(total - prefix, core.head(stream, prefix, now))
        if core.memory.paged(tokens) > budget.chunk:
            tokens = (prefix + budget.chunk // page * page) // page * page - prefix
        if tokens <= 0:
            return Chunk(stream, prefix, 0)
        if core.chunked is not None and prefix + tokens < total:
            return Chunk(stream, prefix, 0)  # one stream can be prefilled in part at a time
        loaded = prefix - resident
        core.memory.take(stream, resident)
        if loaded:
            core.allocate(loaded, now)
            core.memory.extend(stream, resident, prefix)
        chunk = core.chunk_of(stream, prefix, tokens, loaded)
        budget.reserve(tokens, self.reserved(stream, 0) if chunk.last else 0)
        return chunk

    def rows_for(self, stream: int, budget: PrefillBudget, now: float) -> bool:
        """All rows are taken: whether one could be had for this stream."""
        return False

    def taken(self, chunks: list[Chunk], now: float) -> None:
        """Streams have left the queue."""
        gone = {chunk.stream for chunk in chunks}
        self.core.waiting = [stream for stream in self.core.waiting if stream not in gone]

    def mixed(self, step: Step) -> Step:
        """The prefill's step, with the running streams where they decode in it."""
        core = self.core
        if not self.mixes or not core.decode_fits(core.running, core.prefilled(step.chunks)):
            return step
        return replace(step, decode=core.running, again=core.ended.again)

    # ---- what the policy's scheduler does differently ---------------------------------

    @property
    def mixes(self) -> bool:
        """Whether running streams decode in the prefill's step."""
        return self.core.options.enable_mixed_chunk

    def offered(self) -> list[int]:
        """Streams that admission looks at, in order."""
        return list(self.core.waiting)

    def prefix(self, stream: int) -> tuple[int, int]:
        """Leading tokens of the stream's KV on the device, and on device or host."""
        return self.core.memory.match(stream)

    def reserved(self, stream: int, done: int) -> int:
        """Output tokens reserved for a stream that is admitted, `done` of them there already."""
        clip = self.core.options.clip_max_new_tokens
        return min(int(self.core.streams.limit[stream]) - done, clip)

    def reserved_for_running(self) -> float:
        """Output tokens reserved for the running streams."""
        streams, rows = self.core.streams, self.core.batch
        clip = self.core.options.clip_max_new_tokens
        left = np.minimum(streams.limit[rows] - streams.generated[rows], clip)
        return float(left.sum()) * self.ratio

    def chunk_limit(self) -> int:
        """Tokens that this prefill step may take."""
        return self.core.options.chunked_prefill_size

    def chunk_left(self, stream: int, budget: PrefillBudget) -> int:
        """Tokens that the stream whose prompt is prefilled in part may take of this step."""
        return budget.chunk

    def budget(self) -> PrefillBudget:
        """What this prefill step may use up."""
        core = self.core
        rows = len(core.batch) if self.mixes else 0
        return PrefillBudget(core, self.reserved_for_running() + rows, rows, self.chunk_limit())

    def total(self, stream: int) -> int:
        """Tokens whose KV a stream needs before it decodes."""
        return self.core.total(stream)

    def requeue(self, stream: int, now: float) -> None:
        """A stream was thrown out: it waits in the queue, and is computed anew."""
        self.core.waiting.append(stream)
        self.core.streams.phases.move(stream, Phase.WAITING, now)

    # ---- decode ---------------------------------------------------------------------

    def decode(self, now: float) -> Step | None:
        """The next decode step; the least progressed streams are retracted where it needs room."""
        core = self.core
        again = core.ended.again
        if not len(core.running) and not len(again):
            return None
        if not core.decode_fits(core.running):
            if core.ended.at_limit:
                return None  # what ends frees its memory at the end of the present step
            self._retract(now)
        return Step(core.running, again=again)

    def _retract(self, now: float) -> None:
        core, streams = self.core, self.core.streams
        rows = core.running
        # Least output first, longest prompt first among equals.
        order = np.lexsort((-streams.prompt[rows], streams.generated[rows]))
        kept = rows
        for stream in rows[order].tolist():
            fits = core.decode_fits(kept)
            if len(kept) == 1 or (fits and len(kept) < len(rows)):
                break
            kept = kept[kept != stream]
            core.park(stream, now, keep=False)
            self.requeue(stream, now)
            self.retracted += 1
        core.running = kept
        core.full = False
        done, most = streams.generated[kept].sum(), streams.limit[kept].sum()
        self.ratio = min(float(done + RETRACT_STEPS * len(kept)) / float(most + 1), 1.0)
