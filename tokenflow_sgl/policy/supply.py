"""What the engine can do while its memory is full, as admission and routers reckon it.

Engine time of one token at context length x: a decode step takes T and serves M / x streams of the
M tokens that the memory holds. It gives each of them `a` tokens, 1 without speculation; so a token
takes T * x / (M * a). Where streams share what they begin with, more of them fit, and M is what
they read together. With drafts, whose rows are dear, T is divided: rows take the same at any length
of their stream, and only the rest of T grows with it. Once memory has been short, T / M is what was
measured then: the cost model knows nothing of resumes and of steps that were not full.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenflow_sgl.contract import State
from tokenflow_sgl.contract.needs import most_streams

SHORTEST_CONTEXT = 64.0
"""Mean context that the full-memory step time assumes at least, in tokens."""
SHORTEST_STEP = 1e-6
"""Seconds that a step takes at least, whatever the costs say."""
SLOWEST = 2.0
"""Measured costs above so many times the model's are not believed."""
FAR = 2.0
"""Batches above so many times those that were seen are not inferred where servers are compared."""
MOST_OF_ROWS = 0.99
"""Rows take at most such a part of a token's time: a fit of few steps may give them all of it."""


@dataclass(frozen=True, slots=True)
class Supply:
    """What the engine can do while memory is full.

    token_cost: seconds per decoded token and token of its context. speed: tokens per second
    that one stream can get. row: a decoded token costs as if its context were so many tokens
    longer.
    """

    token_cost: float
    speed: float
    row: float = 0.0


def supplied(state: State, context: float, own: float, unmeasured: float) -> Supply:
    """The supply for streams of this mean context, tokens, as measured where it was.

    own: KV tokens that each takes. unmeasured: cost of a token over the model's where it was not.
    """
    supply = modelled(state, context, own)
    # Measured is what a token takes with its row.
    context = max(context, SHORTEST_CONTEXT)
    part = context / (context + supply.row)
    cost = supply.token_cost / part
    measured = unmeasured * cost
    if state.kv_rate > 0.0:
        measured = 1.0 / (state.kv_rate * state.costs.tokens_per_step)
    return Supply(part * min(max(measured, cost), SLOWEST * cost), supply.speed, supply.row)


def modelled(state: State, context: float, own: float, *, inferred: bool = True) -> Supply:
    """The supply for streams of this mean context, tokens, as the cost model has it.

    own: KV tokens that each takes, fewer where they share what they begin with. inferred: what the
    model says of far larger steps than it has seen counts; else they take no longer than those.
    """
    memory, total = state.memory, float(state.memory.kv.total)
    own = max(own + memory.ahead, SHORTEST_CONTEXT)
    context = max(context + memory.ahead, SHORTEST_CONTEXT)
    rows = most_streams(memory, context, own)
    if own < context:
        rows = min(rows, memory.max_running)
    if own < context or rows < total / context:
        total = rows * context  # what they share is read by each; or another pool is full before
    part = 1.0 if inferred else min(1.0, FAR * state.costs.seen_rows / max(rows, 1.0))
    step = max(state.costs.token_seconds(part * rows, part * total), SHORTEST_STEP)
    row = min(_row(state, part * rows) / step, MOST_OF_ROWS) if memory.ahead else 0.0
    return Supply((1.0 - row) * step / total, 1.0 / step, context * row / (1.0 - row))


def _row(state: State, rows: float) -> float:
    """Seconds that the rows themselves take of a token's time, whatever they read."""
    costs = state.costs
    if costs.decode is None:
        return 0.0
    return costs.decode[1] * rows / costs.tokens_per_step
