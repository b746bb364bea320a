"""What a schedule of restorations is made from, and what comes of it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from tokenflow_sgl.restoration.channel import Channel
from tokenflow_sgl.restoration.prefix_way import PrefixWay
from tokenflow_sgl.restoration.token_wise import Seconds

PIECE = 256
"""Tokens that a channel loads at a time."""


class IoOrder(enum.Enum):
    """Which request a channel serves first."""

    IN_TURN = "in-turn"
    """The one that the device computes first: device and channel work on the same request, and the
    others wait for both. Best for the mean TTFT."""
    LARGEST = "largest"
    """`io_order`: after least slack the largest remaining recompute, as the paper. All are done a
    little sooner where lengths differ much, most of them later."""


@dataclass(frozen=True, slots=True)
class Job:
    """One request whose KV is to be restored.

    Attributes:
        gap: Tokens whose KV is stored, >= 1.
        suffix: Tokens behind them, which are computed in any case, >= 1.
        way: RECOMPUTE; LOAD, head first, as a stock prefetch; TOKENS, both at once, or computing
            alone where that is done sooner.
        channel: Index of the channel that has it.
        arrival: Seconds, on the clock of the schedule.
        deadline: When its first token is due; infinite: never.
        patience: Of a LOAD: seconds after its arrival from which on what has landed is enough, and
            the rest is computed: 0.0 is SGLang's `best_effort`, infinite its `wait_complete`.
    """

    gap: int
    suffix: int = 1
    way: PrefixWay = PrefixWay.TOKENS
    channel: int = 0
    arrival: float = 0.0
    deadline: float = math.inf
    patience: float = math.inf

    def __post_init__(self) -> None:
        for name in ("gap", "suffix"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed is 1 or more")
        if self.way not in (PrefixWay.RECOMPUTE, PrefixWay.LOAD, PrefixWay.TOKENS):
            raise ValueError(f"way is {self.way!r}; allowed is RECOMPUTE, LOAD or TOKENS")


@dataclass(frozen=True, slots=True)
class PrefillMachine:
    """The device and the channels that serve a batch of restorations.

    Attributes:
        compute: Seconds of computing.
        channels: At least one.
        page: Tokens of a page, >= 1.
        chunk: Tokens of a step at most, >= 1.
        order: Of the channels.
        piece: Tokens that a channel loads at a time, >= 1.
        greedy: Heads are computed as long as anything is missing, whatever the channel brings
            meanwhile: two pointers without a cost model, as in Cake.
    """

    compute: Seconds
    channels: tuple[Channel, ...]
    page: int
    chunk: int
    order: IoOrder = IoOrder.IN_TURN
    piece: int = PIECE
    greedy: bool = False


@dataclass(frozen=True, slots=True)
class ServedJob:
    """What came of one job.

    Attributes:
        ttft: Seconds from its arrival to its first token.
        computed, loaded: Tokens of its gap, by way.
    """

    ttft: float
    computed: int
    loaded: int


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """What came of a batch.

    Attributes:
        served: Of each job, in their order.
        seconds: Until the last first token.
        computing: Seconds in which the device computed.
        loading: Seconds in which each channel loaded.
    """

    served: tuple[ServedJob, ...]
    seconds: float
    computing: float
    loading: tuple[float, ...]

    @property
    def mean_ttft(self) -> float:
        """Mean time to first token over the jobs, seconds."""
        return sum(one.ttft for one in self.served) / len(self.served)
