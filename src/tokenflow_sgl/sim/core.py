"""What SGLang's scheduler keeps between two steps, and what both schedulers here share."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.policy import Phase
from tokenflow_sgl.sim.memory import Memory
from tokenflow_sgl.sim.options import EngineOptions
from tokenflow_sgl.sim.step import NOBODY, Chunk, Device, Step
from tokenflow_sgl.sim.streams import NOT_HERE, IntArray, Streams


class Core:
    """State of the engine; times are seconds on the trace's clock.

    Attributes:
        running: Streams that decode, in SGLang's order.
        waiting: The queue, first come first.
        chunked: The stream whose prompt is prefilled in part; None: none.
        computed: Tokens of its prompt that are done.
        full: SGLang's batch_is_full: no admission is tried until a stream leaves.
    """

    def __init__(self, streams: Streams, device: Device, options: EngineOptions) -> None:
        self.streams = streams
        self.device = device
        self.options = options
        self.memory = Memory(options.max_total_tokens, options.host_tokens)
        self.running = NOBODY
        self.waiting: list[int] = []
        self.chunked: int | None = None
        self.computed = 0
        self.full = False
        self._ended: list[int] = []
        self._ended_before: list[int] = []

    def arrive(self, stream: int, time: float) -> None:
        """A request comes in."""
        self.streams.arrive(stream, time)
        self.waiting.append(stream)

    def length(self, rows: IntArray) -> IntArray:
        """Tokens of KV that running streams hold: all but the last one's."""
        return self.streams.prompt[rows] + self.streams.generated[rows] - 1

    def start(self, step: Step) -> None:
        """A planned step is launched: it takes its memory."""
        need = len(step.decode) + sum(chunk.tokens for chunk in step.chunks)
        self.memory.allocate(need)

    def advance(self, step: Step, end: float) -> list[int]:
        """A step has ended: streams that got their last token. Call after `Streams.deliver`."""
        for chunk in step.chunks:
            if chunk.last:
                self.streams.move(chunk.stream, Phase.RUNNING, end)
        joined = [chunk.stream for chunk in step.chunks if chunk.last]
        if joined:
            self.running = np.concatenate([self.running, np.array(joined, dtype=np.int64)])
        streams, rows = self.streams, self.running
        last = streams.generated[rows] >= streams.limit[rows]
        if not last.any():
            return []
        over: list[int] = rows[last].tolist()
        self.running = rows[~last]
        self._ended += over
        for stream in over:
            streams.phase[stream] = NOT_HERE
        return over

    def forget(self, now: float, *, at_once: bool) -> None:
        """Free the KV of streams that ended, one step after their end: so late SGLang knows."""
        gone = self._ended_before + (self._ended if at_once else [])
        self._ended_before = [] if at_once else self._ended
        self._ended = []
        for stream in gone:
            tokens = int(self.length(np.array([stream]))[0])
            self.memory.cache(
                stream, tokens, ready=self.device.store(self.memory.unwritten(stream, tokens), now)
            )
        if gone:
            self.full = False

    @property
    def ending(self) -> bool:
        """Streams have ended whose memory is not free yet."""
        return bool(self._ended or self._ended_before)

    def chunk_of(self, stream: int, prefix: int, tokens: int, loaded: int) -> Chunk:
        """The next stretch of a stream; what is left of it makes it the chunked one."""
        total = int(self.streams.prompt[stream] + self.streams.generated[stream])
        last = prefix + tokens >= total
        self.chunked, self.computed = (None, 0) if last else (stream, prefix + tokens)
        return Chunk(stream, prefix, tokens, loaded, last)
