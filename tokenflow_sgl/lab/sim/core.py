"""What SGLang's scheduler keeps between two steps, and what both schedulers here share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenflow_sgl.contract import BoolArray, Phase
from tokenflow_sgl.lab.sim.ended_streams import EndedStreams
from tokenflow_sgl.lab.sim.engine_options import EngineOptions
from tokenflow_sgl.lab.sim.kv_memory import KVMemory
from tokenflow_sgl.lab.sim.prefill_copies import PrefillCopies
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.simulated_streams import IntArray, SimulatedStreams
from tokenflow_sgl.lab.sim.speculation import Acceptance
from tokenflow_sgl.lab.sim.step import NO_STREAM, Chunk, SimulatedDevice, Step
from tokenflow_sgl.lab.sim.storage import Storage
from tokenflow_sgl.lab.sim.window_pool import WindowPool


class SimulatedCore:
    """State of the engine; times are seconds on the trace's clock.

    Attributes:
        running: Streams that decode, in SGLang's order.
        waiting: The queue, first come first.
        chunked: The stream whose prompt is prefilled in part; None: none.
        computed: Tokens of its prompt that are done.
        full: SGLang's batch_is_full: no admission is tried until a stream leaves.
        ended: Streams that got their last token, and hold memory still.
        room_at: When the last eviction's copy ends that a step waits for (write-back).
        busy_until: When the step under way ends, as the engine says before a plan begins.
        storage: The tier below the host pool; None: there is none.
        acceptance: Says how many tokens decode steps give; None: one each.
        shares: Whether any prompt shares anything.
        windows: The pool of layers with a sliding window; None: there are none.
    """

    def __init__(
        self,
        streams: SimulatedStreams,
        prefixes: Prefixes,
        device: SimulatedDevice,
        options: EngineOptions,
    ) -> None:
        self.streams = streams
        self.device = device
        self.options = options
        self.memory = KVMemory(
            options.max_total_tokens,
            options.host_tokens,
            prefixes,
            page=options.page_size,
            write_back=options.hicache_write_policy == "write_back",
            keep_copies=options.keep_copies,
        )
        self.acceptance: Acceptance | None = None
        if options.speculates:
            drafts = options.speculative_num_draft_tokens
            self.acceptance = Acceptance(options.acceptance, drafts)
        self._drafting: BoolArray = np.zeros(len(streams), dtype=np.bool_)  # has slots for drafts
        self.windows: WindowPool | None = None
        if options.sliding_window:
            total = int(options.max_total_tokens * options.swa_full_tokens_ratio)
            self.windows = WindowPool(
                total, options.sliding_window, options.chunked_prefill_size, options.page_size
            )
        self.shares = prefixes.any
        self.running = NO_STREAM
        self.waiting: list[int] = []
        self.chunked: int | None = None
        self.computed = 0
        self.full = False
        self.room_at = self.busy_until = 0.0
        self.storage: Storage | None = None
        if options.storage_gbps and options.host_tokens:
            self.storage = Storage(self.memory, prefixes, device.profile, options)
        self._loading: dict[int, int] = {}  # tokens that a stream will have on the device
        self.ended = EndedStreams(streams)
        self._prefilled = PrefillCopies(self.memory)

    def arrive(self, stream: int, sent: float, seen: float) -> None:
        """A request that was sent then is seen by the scheduler."""
        self.streams.arrive(stream, sent, seen)
        self.waiting.append(stream)
        if self.storage is not None:
            self.storage.arrive(stream, int(self.streams.prompt[stream]), seen)

    def total(self, stream: int) -> int:
        """Tokens whose KV a stream needs before it decodes."""
        return int(self.streams.prompt[stream] + self.streams.generated[stream])

    def ready(self, stream: int, now: float) -> bool:
        """Whether a waiting stream has what it waits for from the storage."""
        lead = max(self.busy_until - now, 0.0)
        total = self.total(stream)
        return self.storage is None or self.storage.ready(stream, total, now, lead)

    def head(self, stream: int, computed: int, now: float) -> int:
        """Tokens behind the computed ones that are not to come from the storage, at most."""
        total = self.total(stream)
        if self.storage is None:
            return total
        lead = max(self.busy_until - now, 0.0)
        head = self.storage.head(stream, computed, total, now, lead)
        return total if head is None else head

    def join(self, stream: int, now: float) -> None:
        """The tail of the chunked stream, if all of it has landed, follows its computed head."""
        tail = self.storage.tail(stream, self.computed, now) if self.storage is not None else 0
        if self.storage is None or not tail or tail > self.memory.free:
            return
        self.allocate(tail, now)
        self.memory.extend(stream, self.computed, self.computed + tail)
        self.storage.joined(stream, self.computed, now)
        self.computed += tail

    def length(self, rows: IntArray) -> IntArray:
        """Tokens of KV that running streams hold: all but the last one's."""
        return self.streams.prompt[rows] + self.streams.generated[rows] - 1

    def growth(self, rows: IntArray, tokens: int | IntArray) -> int:
        """Tokens of the pages that running streams still need for so many more tokens each.

        With speculation also of those for their drafts, where they do not hold them yet.
        """
        page, drafts = self.options.page_size, 0
        if self.acceptance is not None:
            drafts = int(np.count_nonzero(~self._drafting[rows])) * self.memory.paged(
                self.options.ahead
            )
        if page == 1:
            return drafts + (len(rows) * tokens if isinstance(tokens, int) else int(tokens.sum()))
        held = self.length(rows)
        return drafts + int((-(-(held + tokens) // page) + -held // page).sum()) * page

    def next_growth(self, rows: IntArray) -> int:
        """KV tokens that these streams take in the next decode step, drafts included."""
        if self.acceptance is None:
            return self.growth(rows, 1)
        return self.growth(rows, self.acceptance.tokens(rows, self.streams.generated[rows]))

    def grow(self, rows: IntArray, tokens: int | IntArray, now: float) -> None:
        """Running streams get so many more tokens each; see `allocate`."""
        self.allocate(self.growth(rows, tokens), now)
        self._drafting[rows] = self.acceptance is not None

    @property
    def batch(self) -> IntArray:
        """What runs to SGLang while it plans: those that end in the step under way, too."""
        unknown = self.ended.unknown
        return np.concatenate([self.running, unknown]) if len(unknown) else self.running

    @property
    def window_free(self) -> int:
        """Places of the window pool that no running stream has; 0 where no layer has a window."""
        chunked = self.computed if self.chunked is not None else 0
        return 0 if self.windows is None else self.windows.free(self.length(self.batch), chunked)

    def decode_fits(self, rows: IntArray, beside: int = 0) -> bool:
        """Whether a decode step of these streams fits, beside so many tokens of a prefill."""
        if self.memory.free - beside < self.next_growth(rows):
            return False
        if self.windows is None:
            return True
        length = self.length(rows)
        chunked = self.computed if self.chunked is not None else 0
        return self.windows.growth(length, 1) <= self.windows.free(length, chunked)

    def prefilled(self, chunks: Sequence[Chunk]) -> int:
        """Tokens of the pages that these chunks need."""
        paged = self.memory.paged
        return sum(paged(chunk.prefix + chunk.tokens) - paged(chunk.prefix) for chunk in chunks)

    def steps_that_fit(self, rows: IntArray) -> int:
        """Decode steps of running streams for which there is memory, at least."""
        page, free = self.options.page_size, self.memory.free
        if self.acceptance is None:
            steps = free // (len(rows) * page) * page
        else:
            free -= self.growth(rows, 0)
            steps = free // (len(rows) * page) * page // self.acceptance.most
        if self.windows is None:
            return steps
        return min(steps, self.windows.steps(len(rows), self.window_free))

    def allocate(self, tokens: int, now: float) -> None:
        """Take memory, whole pages, at `now`; what is written back for it is there at `room_at`."""
        unsaved = self.memory.allocate(tokens)
        if unsaved:
            self.room_at = self._store(unsaved, now)

    def _behind_step(self, now: float) -> float:
        """When a copy of a plan of `now` begins: SGLang has it wait for the step under way."""
        return max(now, self.busy_until)

    def _store(self, tokens: int, now: float) -> float:
        return self.device.store(tokens, self._behind_step(now))

    def missing(self, stream: int) -> int:
        """Tokens of a paused stream that could be loaded, beyond what is on the device."""
        resident, reach = self.memory.match(stream)
        return max(reach - self._loading.get(stream, resident), 0)

    def load(self, stream: int, tokens: int, now: float) -> float:
        """Bring `tokens` more of a paused stream back, which fit; returns when they are there."""
        if stream not in self._loading:
            self._loading[stream] = self.memory.match(stream)[0]
            self.memory.take(stream, self._loading[stream])
        start = self._loading[stream]
        self.allocate(tokens, now)
        self.memory.extend(stream, start, start + tokens)
        self._loading[stream] = start + tokens
        return self.device.load(tokens, self._behind_step(now))

    def loaded(self, stream: int, now: float) -> None:
        """What was loaded of it stays until it runs or another stream needs the room."""
        self.memory.release(
            stream, self._loading.pop(stream), lambda tokens: self._store(tokens, now)
        )

    def park(self, stream: int, now: float, *, keep: bool = True) -> None:
        """A stream's KV is for what needs the room; unless `keep`, its own part is gone."""
        tokens = int(self.streams.prompt[stream] + self.streams.generated[stream]) - 1
        if self._drafting[stream]:
            self._drafting[stream] = False
            self.memory.give_back(self.memory.paged(self.options.ahead))
        self.memory.release(
            stream, tokens, lambda unwritten: self._store(unwritten, now), keep=keep
        )

    def unwritten(self, rows: IntArray) -> IntArray:
        """Tokens of running streams, in whole pages, that have no copy on the host."""
        return self.memory.unwritten(rows, self.length(rows))

    def write(self, stream: int, now: float, most: int | None = None) -> int:
        """Copy what a running stream has no copy of, or `most` tokens; returns how many."""
        tokens = int(self.unwritten(np.array([stream]))[0])
        tokens = tokens if most is None else min(tokens, most)
        if not tokens:
            return 0
        return self.memory.write(stream, tokens, lambda count: self._store(count, now))

    def advance(self, step: Step, end: float) -> list[int]:
        """A step has ended: streams that got their last token.

        Call after `StepResults.add`.
        """
        self._note(end)
        for chunk in step.chunks:
            if self.shares:
                self.memory.extend(chunk.stream, chunk.prefix, chunk.prefix + chunk.tokens)
            if chunk.last:
                self.streams.phases.move(chunk.stream, Phase.RUNNING, end)
                self._prefilled.add(chunk.stream, self.total(chunk.stream) - 1)
        joined = [chunk.stream for chunk in step.chunks if chunk.last]
        if joined:
            self.running = np.concatenate([self.running, np.array(joined, dtype=np.int64)])
        streams, rows = self.streams, self.running
        last = streams.generated[rows] >= streams.answer[rows]
        if not last.any():
            return []
        over: list[int] = rows[last].tolist()
        self.running = rows[~last]
        self.ended.add(over)
        return over

    @property
    def unsettled(self) -> bool:
        """Whether SGLang has still to learn of ends, or to start copies, of the last steps."""
        return bool(self.ended) or bool(self._prefilled)

    def forget(self, now: float, *, at_once: bool) -> list[int]:
        """A plan begins: streams of whose end SGLang knows by now, and whose KV is free.

        at_once: See `EndedStreams.turn`.
        """
        self._note(now)
        self._prefilled.start(lambda tokens: self._store(tokens, now), at_once=at_once)
        gone = self.ended.turn(at_once=at_once)
        for stream in gone:
            self.park(stream, now)
            self.streams.phases.leave(stream)
        if gone:
            self.full = False
        return gone

    def _note(self, now: float) -> None:
        if self.storage is not None:
            self.storage.moment = now

    def chunk_of(self, stream: int, prefix: int, tokens: int, loaded: int) -> Chunk:
        """The next stretch of a stream; what is left of it makes it the chunked one."""
        total = self.total(stream)
        last = prefix + tokens >= total
        if not last:
            self.chunked, self.computed = stream, prefix + tokens
        elif self.chunked == stream:
            # A head that waits for its tail leaves room in a step for others, which end in it.
            self.chunked, self.computed = None, 0
        return Chunk(stream, prefix, tokens, loaded, last)
