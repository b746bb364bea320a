"""The typed actions of a decision. Each names a stream by its slot."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Cause(enum.Enum):
    """Why a stream is preempted."""

    NEWCOMER = "newcomer"
    """To free memory for a stream that has no first token yet."""
    EXCHANGE = "exchange"
    """To free memory for a paused stream whose reader is closer to a stall."""
    MEMORY = "memory"
    """The next decode steps would not fit."""
    PARK = "park"
    """Far ahead of its reader, and the batch is faster without it, or streams are paced."""
    REST = "rest"
    """Its reader has looked away."""
    POLICY = "policy"
    """Any other reason of a policy of its own."""


@dataclass(frozen=True, slots=True)
class Preempt:
    """Take a running stream out of the batch; its KV stays in the prefix tree."""

    slot: int
    cause: Cause


@dataclass(frozen=True, slots=True)
class Write:
    """Copy the next `tokens` (whole pages) of a running stream's KV to the host."""

    slot: int
    tokens: int


class Way(enum.Enum):
    """How a paused stream's KV comes to the device."""

    LOAD = "load"
    """Copied from the host."""
    RECOMPUTE = "recompute"
    """Computed from its tokens."""


class When(enum.Enum):
    """Whether a restoration is part of the stream's next step."""

    IN_STEP = "in-step"
    """With the prefill step that resumes the stream, which waits for it layer by layer."""
    AHEAD = "ahead"
    """Beside the steps (prefetch): no step waits, and the stream resumes when it has landed."""


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring the KV of a paused stream to the device.

    Attributes:
        slot: The stream.
        way: How.
        when: In the step that resumes it, or before.
        part: Of a prefetch, tokens that are worth a copy of their own: where memory for all of it
            is missing, it may come in chunks of that many tokens or more. 0: it comes as a whole.
    """

    slot: int
    way: Way = Way.LOAD
    when: When = When.IN_STEP
    part: int = 0


@dataclass(frozen=True, slots=True)
class Prefill:
    """What the next prefill step may be.

    Attributes:
        hold: Run one decode step first: a reader would stall behind a prefill. Not where the
            running streams decode in the prefill step, too, unless `hold_mixed` is set.
        hold_mixed: Run one decode step first in any case; only with `hold`.
        limit: Tokens of it at most; None: the engine's own limit.
        begun: Of these, tokens of the prompt at most of which earlier steps computed a part, so
            that others begin beside it; None: as many as there is room for.
    """

    hold: bool = False
    hold_mixed: bool = False
    limit: int | None = None
    begun: int | None = None
