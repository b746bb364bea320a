"""What a policy may look at: one frozen picture of the streams, the memory and the costs.

The body (live engine, emulator, simulator) builds a `State`, a policy answers with a
`Decision`. A policy reads no clock and does no I/O: every time and every measurement
that it needs is in here, so the same state gives the same decision on every
tensor-parallel rank and in the simulator.

Units: seconds on the body's clock (any origin), tokens, tokens per second.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.costs import Links, StepCosts

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
PhaseArray = NDArray[np.int8]


_Array = TypeVar("_Array", IntArray, BoolArray)


def _sealed(array: _Array) -> _Array:
    array.setflags(write=False)
    return array


class Phase(enum.IntEnum):
    """Where a stream stands between its arrival and its last token."""

    WAITING = 0
    """Arrived, no token produced yet, holds no KV."""
    RUNNING = 1
    """Holds its KV on the device: being prefilled or decoded."""
    DRAINING = 2
    """Preempted, but a result that it takes part in is still in flight; KV still held."""
    PAUSED = 3
    """Started, not running; its KV is in the prefix tree, on the host, or must be recomputed."""
    LOADING = 4
    """As paused, and its KV is on its way back to the device, which has room for it set aside."""


@dataclass(frozen=True)
class Streams:
    """All tracked streams as parallel arrays of one length n, in arrival order.

    slot: identity of the stream, stable over its life (the body's index).
    phase: a `Phase` value.
    arrival: when the request arrived.
    rate: tokens per second that its reader consumes.
    next_due: when its reader runs dry if nothing more is delivered. Slack is
        `next_due - now`. For a stream without a first token: its arrival.
    prompt: prompt tokens.
    generated: output tokens produced so far, sent to the reader or not: with the prompt, the
        memory that the stream takes.
    expected: estimated total output tokens (never below generated + 1).
    since: when it entered its phase.
    admitted: member of the working set (the policy promised to serve it).
    preemptible: the body can preempt it now.
    streaming: a reader follows its text as it is made. Otherwise the answer is sent as a whole at
        its end: no reader stalls, but no pause is free either. Its `rate` is then the highest.
    ready: a paused stream that can be taken up at once: its KV was brought back to the device since
        it was paused, or the body found that it cannot be loaded beside the steps.
    unwritten: of a running stream, tokens of computed KV that have no copy on the host.
    """

    slot: IntArray
    phase: PhaseArray
    arrival: FloatArray
    rate: FloatArray
    next_due: FloatArray
    prompt: IntArray
    generated: IntArray
    expected: FloatArray
    since: FloatArray
    admitted: BoolArray
    preemptible: BoolArray
    streaming: BoolArray
    ready: BoolArray
    unwritten: IntArray

    def __len__(self) -> int:
        return len(self.slot)

    # What every part of a policy asks for is worked out once per state; nobody may write to it.

    @cached_property
    def waiting(self) -> BoolArray:
        """Which streams are `Phase.WAITING`, shape (n,)."""
        return self._are(Phase.WAITING)

    @cached_property
    def running(self) -> BoolArray:
        """Which streams are `Phase.RUNNING`, shape (n,)."""
        return self._are(Phase.RUNNING)

    @cached_property
    def draining(self) -> BoolArray:
        """Which streams are `Phase.DRAINING`, shape (n,)."""
        return self._are(Phase.DRAINING)

    @cached_property
    def paused(self) -> BoolArray:
        """Which streams are `Phase.PAUSED`, shape (n,)."""
        return self._are(Phase.PAUSED)

    @cached_property
    def loading(self) -> BoolArray:
        """Which streams are `Phase.LOADING`, shape (n,)."""
        return self._are(Phase.LOADING)

    @cached_property
    def away(self) -> BoolArray:
        """Which streams have started and hold no row: paused or loading, shape (n,)."""
        return _sealed(self.paused | self.loading)

    @cached_property
    def member(self) -> BoolArray:
        """Which streams are in the working set: admitted, or started; shape (n,)."""
        return _sealed(~self.waiting | self.admitted)

    @cached_property
    def index_of(self) -> Mapping[int, int]:
        """Place of each slot in these arrays."""
        return dict(zip(self.slot.tolist(), range(len(self)), strict=True))

    @cached_property
    def length(self) -> IntArray:
        """Tokens of context: prompt and output so far, shape (n,)."""
        return _sealed(self.prompt + self.generated)

    def _are(self, phase: Phase) -> BoolArray:
        # numpy takes five times as long to compare with a member of an enumeration.
        return _sealed(self.phase == phase.value)


@dataclass(frozen=True, slots=True)
class Memory:
    """KV memory in tokens.

    device_total, device_free: capacity, and what can be allocated now (free pages plus
        pages of the prefix tree that nobody locks, the KV of paused streams included).
    device_promised: tokens that running streams still need for a prefill under way.
    host_total: capacity of the host tier; 0 where there is none.
    page_size: tokens per page.
    max_running: how many streams can hold a row at once.
    """

    device_total: int
    device_free: int
    device_promised: int
    host_total: int
    page_size: int
    max_running: int


@dataclass(frozen=True, slots=True)
class Recollection:
    """What a policy wants to remember until its next pass; handed back to it unchanged.

    last_cycle: when the working set was last re-planned (-inf: never).
    plan: slots that the last cycle chose to start or resume, most urgent first.
    park_share: share of the raw decode throughput that parking must keep (1: park nobody).
    overloaded: the paper baseline's Eq. 6 fallback is on.
    switches: preemptions that a baseline with a budget for them has left.
    """

    last_cycle: float = -np.inf
    plan: tuple[int, ...] = ()
    park_share: float = 1.0
    overloaded: bool = False
    switches: float = 0.0


@dataclass(frozen=True, slots=True)
class State:
    """Everything that one policy pass sees.

    last_prefill_end, last_prefill_seconds: when the last prefill step ended and how long
        it took; -inf and 0.0 before the first.
    throughput: output tokens per second over the body's last measuring window; NaN
        while unknown.
    kv_rate: tokens of context that decoding read per second, lately, while more streams were
        served than the memory holds, prefills not counted; NaN while unknown.
    prefill_share: share of the time that prefills took then; 0.0 while unknown.
    links: between device and host memory, as measured.
    """

    now: float
    streams: Streams
    memory: Memory
    costs: StepCosts
    last_prefill_end: float = -np.inf
    last_prefill_seconds: float = 0.0
    throughput: float = float("nan")
    kv_rate: float = float("nan")
    prefill_share: float = 0.0
    links: Links = field(default_factory=Links)
    recollection: Recollection = field(default_factory=Recollection)
