"""One forward pass: what is in it, and how long it takes on a device."""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, field

import numpy as np

from tokenflow_sgl.choices import IoBackend, MemLayout
from tokenflow_sgl.costs import Links, MeasuredLink, TransferRate, attention_work
from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.profiles.pieces import Pieces, host_layout, load_pieces, store_pieces
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray

NO_STREAM: IntArray = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stretch of one stream's prompt (or of what it had generated) in a prefill step.

    prefix: tokens before it whose KV is there. tokens: its length. loaded: tokens of the prefix
    that come back from the host for it. last: the stream has all its KV afterwards.
    """

    stream: int
    prefix: int
    tokens: int
    loaded: int = 0
    last: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """The work of a step.

    decode: streams that get a token each. again: streams that have ended, whose rows are computed
    for nothing (`EndedStreams`).
    """

    decode: IntArray
    chunks: tuple[Chunk, ...] = ()
    again: IntArray = field(default_factory=lambda: NO_STREAM)

    @property
    def rows(self) -> IntArray:
        """All rows of one token that run beside the chunks."""
        return np.concatenate([self.decode, self.again]) if len(self.again) else self.decode


@dataclass(slots=True)
class IssuedCount:
    """Copies in one direction: how many, their tokens and times, and how they were issued."""

    transfers: int = 0
    tokens: int = 0
    seconds: float = 0.0
    calls: int = 0
    pieces: int = 0

    def add(self, tokens: int, seconds: float, issued: Pieces) -> None:
        """Count one more copy, and how it was issued."""
        self.transfers += 1
        self.tokens += tokens
        self.seconds += seconds
        self.calls += issued.calls
        self.pieces += issued.pieces

    def __add__(self, other: IssuedCount) -> IssuedCount:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return IssuedCount(*(mine + theirs for mine, theirs in pairs))


class SimulatedDevice:
    """Durations on the emulated device's clock, and when its links are free.

    Args:
        profile: Step times and links.
        overlap: Loads and stores go on at the same time, as PCIe can; else one after the other.
        page: Tokens of a page.
        backend: HiCache's I/O backend.
        layout: Its layout of host memory.
        drafts: Tokens of a stream that a decode step verifies; 1 without speculation.

    Attributes:
        stores, loads: Copies to the host and back so far.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        *,
        overlap: bool = True,
        page: int = 1,
        backend: IoBackend = IoBackend.kernel,
        layout: MemLayout = MemLayout.page_first,
        drafts: int = 1,
    ) -> None:
        self.profile = profile
        self.stores, self.loads = IssuedCount(), IssuedCount()
        self._overlap = overlap
        self._page = page
        self._drafts = drafts
        self._backend = backend
        self._layout = host_layout(backend, layout)
        self._load_free = 0.0
        self._store_free = 0.0
        self._rates = TransferRate(), TransferRate()
        self._storing: deque[tuple[float, int]] = deque()  # when copies end, and their tokens

    def decode_seconds(self, batch: int, context: int, count: int, grown: int) -> FloatArray:
        """Seconds of each of some decode steps, shape (count,).

        A row of drafts is computed like as many rows that read the same KV.

        Args:
            batch: Streams.
            context: Tokens that the first step reads.
            count: Steps.
            grown: Tokens more that the last one reads.
        """
        rows = batch * self._drafts

        def at(more: int) -> float:
            return self.profile.decode_seconds(rows, context + more)

        first = at(0)
        if count == 1:
            return np.array([first])
        # Between two points of the grid a step time is linear in the context.
        last = at(grown)
        if count > FEW:
            middle = at((count - 1) // 2 * grown // (count - 1))
            points = [0, (count - 1) // 2, count - 1]
            return np.asarray(np.interp(np.arange(count), points, [first, middle, last]))
        return np.linspace(first, last, count)

    def prefill_end(self, step: Step, now: float, context: int) -> float:
        """When a step with chunks that starts `now` ends.

        context: KV tokens that its decoding rows read. A load begins with the step, since it may
        overwrite what the step before still reads, and brings layer after layer; each layer
        computes once its KV is there, so that the slower of the two decides.
        """
        batch = len(step.rows)
        # A row of one token is a decoding one to the device, whatever calls it a prefill.
        short = [chunk for chunk in step.chunks if chunk.tokens == 1]
        long = [chunk for chunk in step.chunks if chunk.tokens > 1]
        tokens = sum(chunk.tokens for chunk in long)
        attention = sum(attention_work(chunk.tokens, chunk.prefix) for chunk in long)
        batch += len(short)
        context += sum(chunk.prefix + 1 for chunk in short)
        # And a longer one reads the same KV as if it decoded.
        read = context + sum(chunk.prefix + chunk.tokens for chunk in long)
        seconds = max(
            self.profile.mixed_seconds(tokens, attention, batch, context),
            self.profile.decode.at(batch + len(long), read / (batch + len(long))),
        )
        end = now + seconds
        loaded = sum(chunk.loaded for chunk in step.chunks)
        if loaded:
            end = max(end, self.load(loaded, now) + seconds / self.profile.layers)
        return end

    def load(self, tokens: int, now: float) -> float:
        """When a copy of `tokens` from the host, asked for `now`, has ended."""
        start = max(now, self._load_free)
        pages = -(-tokens // self._page)
        issued = load_pieces(
            self._backend, self._layout, layers=self.profile.layers, pages=pages, runs=pages
        )
        seconds = self.profile.load_seconds(tokens, issued)
        self.loads.add(tokens, seconds, issued)
        self._load_free = start + seconds
        self._rates[1].observe(tokens, self._load_free - start)
        if not self._overlap:
            self._store_free = self._load_free
        return self._load_free

    def links(self, now: float) -> Links:
        """What is known of the links by now."""
        while self._storing and self._storing[0][0] <= now:
            self._storing.popleft()
        store, load = self._rates
        queued = sum(tokens for _, tokens in self._storing)
        return Links(MeasuredLink(store.rate, queued), MeasuredLink(load.rate))

    def store(self, tokens: int, now: float) -> float:
        """When a copy of `tokens` to the host, asked for `now`, has ended."""
        if not tokens:
            return now
        start = max(now, self._store_free)
        pages = -(-tokens // self._page)
        issued = store_pieces(
            self._backend,
            self._layout,
            layers=self.profile.layers,
            pages=pages,
            runs=pages,
            page_bytes=self._page * self.profile.kv_bytes_per_token,
        )
        seconds = self.profile.store_seconds(tokens, issued)
        self.stores.add(tokens, seconds, issued)
        self._store_free = start + seconds
        self._rates[0].observe(tokens, self._store_free - start)
        self._storing.append((self._store_free, tokens))
        if not self._overlap:
            self._load_free = self._store_free
        return self._store_free


FEW = 16
"""Decode steps that are taken as linear between the first and the last."""
