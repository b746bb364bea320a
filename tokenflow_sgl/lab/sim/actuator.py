"""Carries decisions out in the simulator: the verbs of `lifecycle.Actuator`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tokenflow_sgl.contract import Growth, IntArray, Phase, Preempt, Write
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lifecycle.actuator import Action, Missing
from tokenflow_sgl.offload import DeviceRoom


@dataclass(slots=True)
class Counts:
    """What the policy had done.

    Attributes:
        preempted, resumed: Streams, each time.
        loaded, recomputed: Tokens of resumed streams that came from the host in their step, and
            that were computed.
        prefetched: Tokens that came back beside the steps.
        written: Tokens copied to the host while their streams ran.
        needed: Those of streams that were preempted then.
        held: Tokens of all streams that were preempted, each time.
        tails: Tokens that each preemption had left to copy.
    """

    preempted: int = 0
    resumed: int = 0
    loaded: int = 0
    recomputed: int = 0
    prefetched: int = 0
    written: int = 0
    needed: int = 0
    held: int = 0
    tails: list[int] = field(default_factory=list)


class SimActuator:
    """The simulated engine's streams that drain, are paused or load.

    Attributes:
        paused: Streams that can be resumed or prefetched, in the order in which they were paused.
        draining: Streams whose last result is processed before the next step is planned.
        offered: What admission sees in this pass; None: all.
        recompute: Streams whose KV on the host is not loaded.
        counts: What was done so far.
        growth: How the KV of running streams grows, as the scheduler has learned.
    """

    def __init__(self, core: SimulatedCore) -> None:
        self._core = core
        core.memory.copies_ahead = True
        self.growth = Growth(core.options.page_size)
        self.paused: dict[int, None] = {}
        self.draining: list[int] = []
        self.offered: Sequence[int] | None = None
        self.recompute: frozenset[int] = frozenset()
        self.counts = Counts()
        self._now = 0.0
        self._copying = (-1, math.inf)  # the stream that is loaded, and until when
        self._written: dict[int, int] = {}  # tokens of running streams, since they were resumed

    # ---- the verbs ------------------------------------------------------------------

    def accepts(self, action: Action) -> bool:
        """Not what is in the middle of its prefill."""
        return not isinstance(action, Preempt) or action.slot != self._core.chunked

    def write(self, writes: Sequence[Write]) -> int:
        """Copy on the simulated link."""
        whole = 0
        for write in writes:
            copied = self._core.write(write.slot, self._now, write.tokens)
            self._written[write.slot] = self._written.get(write.slot, 0) + copied
            whole += copied
        self.counts.written += whole
        return whole

    def preempt(self, slots: Sequence[int]) -> None:
        """All of them drain: the present step computes a token of each."""
        core = self._core
        core.running = core.running[~np.isin(core.running, slots)]
        core.full = False
        # A stream that ends in the step under way has no result left to wait for.
        core.ended.drop(slots)
        self.draining += [slot for slot in slots if slot not in core.ended.unknown]
        self.counts.preempted += len(slots)

    @property
    def room(self) -> DeviceRoom:
        """Device memory that can be taken, by what the simulated memory has free."""
        core = self._core
        running = len(core.batch) + len(self.draining) + (core.chunked is not None)
        return DeviceRoom(core.memory.free, self.promised, running, self.growth)

    def missing(self, slot: int) -> Missing:
        """What of a paused stream's KV is not on the device, by the simulated prefix tree."""
        core = self._core
        begun = slot in core.streams.phases.parts
        return Missing(core.missing(slot), 0 if begun else core.memory.evictable(slot))

    def load(self, slot: int, tokens: int) -> int:
        """Copy on the simulated link."""
        self._copying = slot, self._core.load(slot, tokens, self._now)
        self.paused.pop(slot, None)
        self.counts.prefetched += tokens
        return tokens

    def give_up(self, slot: int) -> None:
        """Leave a stream that was to resume paused, and what it has on the device cached."""
        self._core.loaded(slot, self._now)
        self.paused[slot] = None

    def offer(
        self, slots: Sequence[int] | None, recompute: frozenset[int], hidden: frozenset[int]
    ) -> None:
        """Admission follows in the same pass."""
        self.offered = slots
        if hidden:
            every = [*sorted(self.paused), *self._core.waiting] if slots is None else slots
            self.offered = [slot for slot in every if slot not in hidden]
        self.recompute = recompute
        if slots:
            self._core.full = False

    @property
    def busy(self) -> bool:
        """Whether a stream runs, or will without being offered."""
        core = self._core
        chunked = core.chunked is not None
        return bool(len(core.batch) or chunked or self.draining or self.prefetching)

    @property
    def prefetching(self) -> bool:
        """One copy at a time, as in the engine."""
        return self._copying[0] >= 0

    def copying(self, slot: int) -> bool:
        """Whether that copy is of this stream."""
        return slot == self._copying[0]

    # ---- what lands -----------------------------------------------------------------

    @property
    def lands_at(self) -> float:
        """When the copy under way has landed; infinite: there is none."""
        return self._copying[1]

    @property
    def promised(self) -> int:
        """Tokens that the prefill under way still needs."""
        core = self._core
        if core.chunked is None:
            return 0
        streams = core.streams
        total = streams.prompt[core.chunked] + streams.generated[core.chunked]
        return int(total) - core.computed

    def begin(self, now: float) -> None:
        """A pass begins: last results are there, and perhaps a prefetch."""
        self._now = now
        self._core.streams.phases.take_stopped()  # the simulated engine counts tokens by itself
        for stream in self.draining:
            self._release(stream, now)
        self.draining = []
        if self.lands_at <= now:
            self._landed(now)

    def hold(self, stream: int, now: float) -> None:
        """The stream is paused: it has drained, its KV has landed, or the engine threw it out."""
        self._core.streams.phases.move(stream, Phase.PAUSED, now)
        self.paused[stream] = None

    def resumed(self, stream: int, loaded: int, computed: int) -> None:
        """A paused stream runs again."""
        del self.paused[stream]
        self.counts.resumed += 1
        self.counts.loaded += loaded
        self.counts.recomputed += computed

    @property
    def present(self) -> list[int]:
        """Streams that are in no queue and no batch of the engine."""
        loading = {*self._core.streams.phases.parts, self._copying[0]} - {-1}
        return [*self.paused, *self.draining, *loading]

    def _landed(self, now: float) -> None:
        phases = self._core.streams.phases
        stream, self._copying = self._copying[0], (-1, math.inf)
        phases.landed(stream, now)
        if stream not in phases.parts:
            self.give_up(stream)  # it may be evicted until the stream runs

    def _release(self, stream: int, now: float) -> None:
        """Give a paused stream's KV to the prefix tree, and what has no copy yet to the host."""
        core = self._core
        row: IntArray = np.array([stream])
        self.counts.tails.append(int(core.unwritten(row)[0]))
        self.counts.needed += self._written.pop(stream, 0)
        self.counts.held += int(core.length(row)[0])
        core.park(stream, now)
        self.hold(stream, now)
