"""What a policy answers: typed actions that the body applies, and nothing else."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Protocol

from tokenflow_sgl.offload import Write
from tokenflow_sgl.policy.state import Recollection, State


class Mode(enum.Enum):
    """Who decides in this pass; also the value of the mode metric."""

    IDLE = "idle"
    """No stress: the engine's own policy runs untouched."""
    WORKING_SET = "working-set"
    """The policy orders admission and preemption."""
    FALLBACK = "fallback"
    """The policy failed in this pass; the engine's own policy runs."""


class Cause(enum.Enum):
    """Why a stream is preempted."""

    NEWCOMER = "newcomer"
    """To make room for a stream that has no first token yet."""
    EXCHANGE = "exchange"
    """To make room for a paused stream whose reader is closer to a stall."""
    MEMORY = "memory"
    """The next decode steps would not fit."""
    PARK = "park"
    """Far ahead of its reader, and the batch is faster without it, or streams are paced."""
    POLICY = "policy"
    """Any other reason of a policy of its own."""


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preempt the stream in `slot`, for `cause`."""

    slot: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Decision:
    """One pass's outcome.

    mode: IDLE leaves the engine's own policy alone; then only `recollection` counts,
        and streams that are paused are offered to it before its own queue. The body may
        let an idle decision stand for a moment, while no stream comes, goes or moves.
    admit: slots that join the working set in this pass.
    preempt: slots to preempt, in order.
    run: slots to start or resume now, most urgent first. The body takes as many as fit.
    recompute: slots of `run` whose host KV should be recomputed instead of loaded.
    hold_prefill: decode one step first, a reader would stall behind a prefill.
    prefill_limit: tokens that one prefill step may take; None: the engine's own limit.
    load: slots of paused streams whose KV should come back to the device beside the next steps,
        most urgent first. The body starts as many as there is memory and transfer slots for.
    write: KV of running streams to copy to the host now, before anybody is preempted.
    until: nothing changes before then while no stream comes, goes or moves, and nobody has to
        run; None: if nobody is chosen and nothing runs, the body runs whom it finds.
    """

    mode: Mode
    admit: tuple[int, ...] = ()
    preempt: tuple[Preemption, ...] = ()
    run: tuple[int, ...] = ()
    recompute: frozenset[int] = frozenset()
    hold_prefill: bool = False
    prefill_limit: int | None = None
    load: tuple[int, ...] = ()
    write: tuple[Write, ...] = ()
    until: float | None = None
    recollection: Recollection = field(default_factory=Recollection)


class Policy(Protocol):
    """Decides who runs. Pure: no clock, no I/O, no state of its own between passes."""

    def decide(self, state: State) -> Decision:
        """Answer `state`. Called once per scheduler iteration; must not mutate `state`.

        May raise: the body then runs the engine's own policy for this pass, counts the
        error and logs the first one.
        """
        ...
