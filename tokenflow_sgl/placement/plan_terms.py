"""What a plan is made of beside the machine: a batch, what else decides, and why streams pause."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray


class PauseReason(enum.Enum):
    """Why a stream is paused."""

    MEMORY = "memory"
    """No placement of the streams fits the memory."""
    OBJECTIVE = "objective"
    """None was found with a step short enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The streams of a decode step; arrays of shape (streams,).

    Attributes:
        tokens: KV tokens of each, >= 1.
        deposit: Tokens that it has generated and its client has not got yet, >= 0.
        tbt_slo: Longest step in seconds that its objective allows, > 0.0; infinite: any.

    Raises:
        ValueError: There is no stream, or a value is outside its range.
    """

    tokens: IntArray
    deposit: IntArray
    tbt_slo: FloatArray

    def __post_init__(self) -> None:
        if not self.tokens.size:
            raise ValueError("tokens is empty; allowed is one stream or more")
        if self.tokens.min() < 1:
            raise ValueError(f"tokens is {int(self.tokens.min())}; allowed is 1 or more")
        if self.deposit.shape != self.tokens.shape or self.tbt_slo.shape != self.tokens.shape:
            raise ValueError(
                "deposit or tbt_slo has other streams than tokens; allowed are as many"
            )
        if self.deposit.min() < 0:
            raise ValueError(f"deposit is {int(self.deposit.min())}; allowed is 0 or more")
        if not (self.tbt_slo > 0.0).all():
            raise ValueError("tbt_slo has a value that is not above 0; allowed is above 0")

    @classmethod
    def of(cls, tokens: IntArray, tbt_slo: float = np.inf) -> Batch:
        """A batch without deposits, and with one objective for all."""
        return cls(tokens, np.zeros_like(tokens), np.full(tokens.shape, tbt_slo))

    def only(self, places: IntArray) -> Batch:
        """Some streams of this batch, as a batch."""
        return Batch(self.tokens[places], self.deposit[places], self.tbt_slo[places])


@dataclass(frozen=True, slots=True)
class PlacementTerms:
    """What decides, beside the batch and the machine.

    Attributes:
        block: Tokens of a block, >= 1.
        ahead: Decode steps for whose end the plan is made, >= 0.
        violations: Streams whose objective a step may miss (alpha in OrbitFlow 3.3.1), >= 0.
        worse: Share of a step by which a plan in force may be above the bound before it expires,
            beside what it is above it when it is made; > 0.0.
        window: Steps after which a plan expires at the latest, >= 1.
    """

    block: int = 16
    ahead: int = 16
    violations: int = 0
    worse: float = 0.02
    window: int = 256


def allowed_seconds(tbt_slo: FloatArray, violations: int) -> float:
    """The longest step that misses the objectives of so many streams at most.

    Args:
        tbt_slo: Longest step that each stream's objective allows, of shape (streams,).
        violations: Streams whose objective may be missed.
    """
    if violations >= tbt_slo.size:
        return np.inf
    return float(np.sort(tbt_slo)[violations])


def blocks_after(tokens: IntArray, steps: int, block: int) -> FloatArray:
    """Blocks of each stream in one layer after so many decode steps, whole ones."""
    return np.ceil((tokens + steps) / block)
