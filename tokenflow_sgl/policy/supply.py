"""What the engine can do while its memory is full, as admission and routers reckon it.

Engine time of one token at context length x: a decode step takes T and serves M / x streams of the
M tokens that the memory holds, so T * x / M. Once memory has been short, T / M is what was measured
then: the cost model knows nothing of resumes and of steps that were not full.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.contract import State

SHORTEST_CONTEXT = 64.0
"""Mean context that the full-memory step time assumes at least, in tokens."""
SHORTEST_STEP = 1e-6
"""Seconds that a step takes at least, whatever the costs say."""
SLOWEST = 2.0
"""Measured costs above so many times the model's are not believed."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What the engine can do while memory is full.

    token_cost: seconds per decoded token and token of its context. speed: tokens per second
    that one stream can get.
    """

    token_cost: float
    speed: float


def supplied(state: State, context: float, unmeasured: float) -> Supply:
    """The supply for streams of this mean context, tokens, as measured where it was.

    unmeasured: cost of a token over the model's where it was not.
    """
    supply = modelled(state, context)
    cost = supply.token_cost
    measured = 1.0 / state.kv_rate if state.kv_rate > 0.0 else unmeasured * cost
    return Supply(min(max(measured, cost), SLOWEST * cost), supply.speed)


def modelled(state: State, context: float) -> Supply:
    """The supply for streams of this mean context, tokens, as the cost model has it."""
    total = state.memory.kv.total
    rows = total / max(context, SHORTEST_CONTEXT)
    step = max(state.costs.decode_seconds(rows, total), SHORTEST_STEP)
    return Supply(step / total, 1.0 / step)
