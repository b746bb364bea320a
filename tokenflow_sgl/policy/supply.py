"""What the engine can do while its memory is full, by the cost model.

A decode step takes T then and serves M / x streams of context x, so a token costs T * x / M engine
seconds. Producing n tokens from length l costs T / M * (n * l + n^2 / 2).
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.contract import State

SHORTEST_CONTEXT = 64.0
"""Mean context that the full-memory step time assumes at least, in tokens."""
SHORTEST_STEP = 1e-6
"""Seconds that a step takes at least, whatever the costs say."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What the engine can do while memory is full.

    token_cost: seconds per decoded token and token of its context. speed: tokens per second
    that one stream can get.
    """

    token_cost: float
    speed: float


def modelled(state: State, context: float) -> Supply:
    """The supply for streams of this mean context, tokens, as the cost model has it."""
    total = state.memory.kv.total
    rows = total / max(context, SHORTEST_CONTEXT)
    step = max(state.costs.decode_seconds(rows, total), SHORTEST_STEP)
    return Supply(step / total, 1.0 / step)
