"""How fast readers read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.traces.parameters import FloatArray
from tokenflow_sgl.lab.traces.request import TraceError


@dataclass(frozen=True, slots=True)
class RateMix:
    """Readers of one or several rates.

    Attributes:
        rates: Tokens per second.
        weights: How common each is, relative to the others; empty: equally.
    """

    rates: tuple[float, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.rates:
            raise TraceError("RateMix: at least one rate must be given")
        if self.weights and len(self.weights) != len(self.rates):
            raise TraceError(f"RateMix: {len(self.rates)} rates but {len(self.weights)} weights")
        for name, values in (("rate", self.rates), ("weight", self.weights)):
            for value in values:
                if not 0 < value < float("inf"):
                    raise TraceError(f"RateMix: {name} is {value!r}; allowed is a number above 0")

    def sample(self, rng: np.random.Generator, count: int) -> FloatArray:
        """Draw `count` rates, tokens per second; a single rate draws nothing."""
        if len(self.rates) == 1:
            return np.full(count, float(self.rates[0]))
        weights = np.array(self.weights, float)
        if self.weights:
            weights /= weights.max()  # their sum may be too large for a float
        shares = weights / weights.sum() if self.weights else None
        return rng.choice(np.array(self.rates, float), count, p=shares)

    def __str__(self) -> str:
        """The text that `parse_rates` reads."""
        if not self.weights:
            return "/".join(f"{rate:g}" for rate in self.rates)
        pairs = zip(self.rates, self.weights, strict=True)
        return "/".join(f"{rate:g}={weight:g}" for rate, weight in pairs)


def parse_rates(text: str) -> RateMix:
    """Read `20`, `15/20/25/30` (equally common) or `15=3/20=1` (with weights).

    Raises:
        TraceError: Not of that form, or a rate or weight is not above 0.
    """
    parts = [part.partition("=") for part in text.split("/")]
    weighted = {bool(equals) for _, equals, _ in parts}
    try:
        rates = tuple(float(rate) for rate, _, _ in parts)
        weights = tuple(float(weight) for _, equals, weight in parts if equals)
    except ValueError:
        weighted = {True, False}
    if len(weighted) > 1:
        raise TraceError(f"rates {text!r} cannot be read; allowed are 20, 15/20/25/30 or 15=3/20=1")
    return RateMix(rates, weights)
