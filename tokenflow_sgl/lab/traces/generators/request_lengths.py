"""How long prompts and answers are.

A `LengthDistribution` draws one kind of length, a `LengthPairs` prompts together with their
answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenflow_sgl.lab.traces.parameters import IntArray, check, parameter
from tokenflow_sgl.lab.traces.request import Trace, TraceError

MAX_TOKENS = 2**31 - 1
"""Longest prompt or answer that a trace may hold."""


class LengthDistribution(Protocol):
    """Draws lengths of prompts or of answers, in tokens."""

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """Draw `count` lengths >= 1."""
        ...


class LengthPairs(Protocol):
    """Draws prompts and their answers."""

    def pairs(self, rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        """Draw the prompt and output lengths of `count` requests, each >= 1."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLengths:
    """Always the same length."""

    tokens: int = parameter("length, tokens", low=1, high=MAX_TOKENS)

    def __post_init__(self) -> None:
        check(self)

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """See `LengthDistribution.sample`."""
        return np.full(count, self.tokens, np.int64)


@dataclass(frozen=True, slots=True)
class NormalLengths:
    """Normal around `mean`, clipped to `low` and `high` times the mean.

    The TokenFlow paper (7.3) says "normal distributions" and gives the means; spread and limits are
    ours: a standard deviation of 25 %, clipped to 16 tokens and 2.5 times the mean.
    """

    mean: float = parameter("mean before clipping, tokens", low=1, high=MAX_TOKENS / 2.5)
    sd: float = parameter("standard deviation as a share of the mean", low=0, high=10, default=0.25)
    low: int = parameter("shortest, tokens", low=1, high=MAX_TOKENS, default=16)
    high: float = parameter("longest, times the mean", low=1, high=1000, default=2.5)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.mean:
            raise TraceError(
                f"NormalLengths: low is {self.low}; allowed is at most the mean, {self.mean:g}"
            )

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """See `LengthDistribution.sample`; fractions are cut off."""
        drawn = rng.normal(self.mean, self.sd * self.mean, count)
        return np.clip(drawn, self.low, min(self.high * self.mean, MAX_TOKENS)).astype(np.int64)


@dataclass(frozen=True, slots=True)
class LogNormalLengths:
    """Log-normal with the given mean and coefficient of variation, clipped to `low` and `high`."""

    mean: float = parameter("mean before clipping, tokens", low=1, high=MAX_TOKENS)
    cv: float = parameter("standard deviation over the mean", low=0, high=100)
    low: int = parameter("shortest, tokens", low=1, high=MAX_TOKENS, default=1)
    high: int = parameter("longest, tokens", low=1, high=MAX_TOKENS, default=MAX_TOKENS)

    def __post_init__(self) -> None:
        check(self)
        if self.low > self.high:
            raise TraceError(
                f"LogNormalLengths: low is {self.low}; allowed is at most high, {self.high}"
            )

    def sample(self, rng: np.random.Generator, count: int) -> IntArray:
        """See `LengthDistribution.sample`; rounded to whole tokens."""
        variance = math.log1p(self.cv**2)
        drawn = rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return np.clip(np.rint(drawn), self.low, self.high).astype(np.int64)


@dataclass(frozen=True, slots=True)
class SeparateLengths:
    """Prompts and answers drawn independently of each other."""

    prompt: LengthDistribution
    output: LengthDistribution

    def pairs(self, rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        """See `LengthPairs.pairs`; all prompts are drawn before the answers."""
        prompts = self.prompt.sample(rng, count)
        return prompts, self.output.sample(rng, count)


@dataclass(frozen=True, slots=True)
class EmpiricalLengths:
    """Requests of another trace, drawn with replacement: prompt and answer stay together."""

    source: Trace

    def pairs(self, rng: np.random.Generator, count: int) -> tuple[IntArray, IntArray]:
        """See `LengthPairs.pairs`."""
        known = self.source.requests
        chosen = rng.integers(0, len(known), count)
        prompts = np.array([request.prompt_tokens for request in known], np.int64)
        outputs = np.array([request.output_tokens for request in known], np.int64)
        return prompts[chosen], outputs[chosen]


LENGTHS: Mapping[str, type[LengthDistribution]] = {
    "fixed": FixedLengths,
    "normal": NormalLengths,
    "lognormal": LogNormalLengths,
}
"""Distributions by the name that the command line uses."""
