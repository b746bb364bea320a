"""All placements of a small batch, but those that the linear program rules out."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.kernels import NOT_FEASIBLE, TINY, Problem, memory_needed, stall
from tokenflow_sgl.placement.local_search import shift
from tokenflow_sgl.placement.lp_bound import bound

LP_WORK = 30
"""Placements that could be judged in the time of one linear program, about."""
_FEWEST_LEFT = 3
"""Streams that must be open for a linear program to pay: fewer are enumerated."""


def branch(
    problem: Problem,
    order: IntArray,
    root: float,
    reduced: FloatArray,
    tilt: float,
    layout: IntArray,
    best: float,
    near: float,
    budget: int,
) -> tuple[float, int]:
    """Search depth-first, large streams first, choices by what they cost at least.

    Args:
        problem: The instance.
        order: Streams by falling size; those of equal size and equal moves stand together.
        root: The bound of the whole problem.
        reduced: Its reduced costs, of shape (choices,).
        tilt: As of `bound`.
        layout: Overwritten with a placement that costs less than `best`, if there is one.
        best: Cost of the best placement known; `NOT_FEASIBLE`: none is.
        near: A placement need not be looked for if it saves less than this.
        budget: Placements to judge; a linear program counts as `LP_WORK`.

    Returns:
        The best cost known, and the work done. Where that is below the budget the placement is
        optimal, within `near`.
    """
    streams, choices = layout.shape[0], problem.numbers.shape[0]
    layers = problem.room.shape[0] - 1
    most = problem.numbers.max()
    mass = np.zeros(choices)
    left = np.zeros(layers + 1)
    divided = np.zeros(choices)
    # By depth: the bound, reduced costs, choices in their order, the one that is tried.
    bounds = np.full(streams + 1, root)
    costs = np.zeros((streams + 1, choices))
    costs[0] = reduced
    tried = np.zeros((streams + 1, choices), dtype=np.int64)
    tried[0] = np.argsort(reduced)
    at = np.full(streams, -1)
    moved = np.zeros(streams + 1)
    chosen = np.zeros(streams, dtype=np.int64)
    after = np.zeros(streams + 1)  # size of the streams behind each depth
    for depth in range(streams - 1, -1, -1):
        after[depth] = after[depth + 1] + problem.sizes[order[depth]]
    work = 0
    depth = 0
    while depth >= 0 and work < budget:
        stream = order[depth]
        size = problem.sizes[stream]
        if at[depth] >= 0:
            shift(mass, chosen[depth], -size)
        at[depth] += 1
        if at[depth] == choices:
            at[depth] = -1
            depth -= 1
            continue
        choice = tried[depth, at[depth]]
        chosen[depth] = choice
        mass[choice] += size
        moves = moved[depth] + problem.moves[stream, choice]
        lowest = bounds[depth] + costs[depth, choice] * size
        if lowest + moves >= best - near:
            continue
        # Streams that differ in nothing need one order only.
        if depth and choice < chosen[depth - 1] and alike(problem, stream, order[depth - 1]):
            continue
        rest = after[depth + 1]
        if memory_needed(problem, mass) + rest * (layers - most) > problem.memory + TINY:
            continue
        work += 1
        limit = best - near - moves
        waited = stall(problem, mass, left, limit)
        if waited >= limit:
            continue
        if depth == streams - 1:
            best = waited + moves
            for place in range(streams):
                layout[order[place]] = chosen[place]
            continue
        bounds[depth + 1] = lowest
        costs[depth + 1] = costs[depth]
        tried[depth + 1] = tried[depth]
        if streams - 1 - depth >= _FEWEST_LEFT:
            work += LP_WORK
            found = bound(problem, mass, rest, tilt, divided, costs[depth + 1])
            if found >= limit or found >= NOT_FEASIBLE:
                continue
            bounds[depth + 1] = found
            tried[depth + 1] = np.argsort(costs[depth + 1])
        moved[depth + 1] = moves
        depth += 1
    return best, work


def alike(problem: Problem, one: int, other: int) -> bool:
    """Whether two streams can be exchanged without any difference."""
    if problem.sizes[one] != problem.sizes[other]:
        return False
    for choice in range(problem.numbers.shape[0]):
        if problem.moves[one, choice] != problem.moves[other, choice]:
            return False
    return True
