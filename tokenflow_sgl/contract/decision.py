"""What a policy answers: typed actions, which `lifecycle.apply` carries out, and nothing else."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from tokenflow_sgl.contract.actions import Preempt, Prefill, Restore, Write


class Mode(enum.Enum):
    """Which policy decides in this pass; also the value of the mode metric."""

    IDLE = "idle"
    """No stress: the engine's own policy runs untouched."""
    WORKING_SET = "working-set"
    """The policy orders admission and preemption."""
    FALLBACK = "fallback"
    """The policy failed in this pass; the engine's own policy runs."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy decides in one pass of the scheduler.

    Attributes:
        mode: IDLE leaves the engine's own policy alone; then only `memo`, `hidden` and what is
            preempted with `Cause.REST` count, and paused streams are offered to admission before
            the engine's own queue. The body may let an idle decision stand for a moment, while no
            stream arrives, ends or changes its phase.
        admit: Slots that join the working set in this pass.
        preempt: Running streams to preempt, in order.
        run: Slots to start or resume now, most urgent first. The body takes as many as fit.
        restore: How KV of paused streams comes back. A stream of `run` without an entry is loaded
            in its step. Entries that are `When.AHEAD` are started, or go on, in their order, as
            there is memory and a transfer slot for them. A stream that is loaded in part and has no
            entry gives its memory up.
        write: KV of running streams to copy to the host now, before any of them is preempted.
        prefill: What the next prefill step may be.
        hidden: Streams that admission does not see in this pass, whatever the mode.
        until: Nothing changes before then while no stream arrives, ends or changes its phase, and
            no stream has to run; None: if the decision runs none and none is running, the body runs
            what it finds.
        wake: When the policy wants to be asked again though nothing happened; -inf: every pass.
            The live engine asks in every pass anyway, a simulator may skip passes until then.
        memo: The policy's own; the next `State` hands it back untouched.
    """

    mode: Mode
    admit: tuple[int, ...] = ()
    preempt: tuple[Preempt, ...] = ()
    run: tuple[int, ...] = ()
    restore: tuple[Restore, ...] = ()
    write: tuple[Write, ...] = ()
    prefill: Prefill = field(default_factory=Prefill)
    hidden: frozenset[int] = frozenset()
    until: float | None = None
    wake: float = -math.inf
    memo: object = None
