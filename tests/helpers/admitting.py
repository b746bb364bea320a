"""What the device of the tests of admission costs."""

from __future__ import annotations

from tokenflow_sgl.costs import StepCosts

# A full-memory step takes 0.1 s and the memory holds 1000 tokens: 1e-4 s per token of context.
COSTS = StepCosts(decode=(0.1, 0.0, 0.0))
AS_MODELLED = 10_000.0
"""Tokens of context read per second, if the engine does what these costs say."""
