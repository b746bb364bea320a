"""Whole streams from a divided solution: rounding, then a local search with 2-exchange."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.kernels import TINY, Problem, memory_needed, stall

MISSING, STALL, MOVED, JUDGED = 0, 1, 2, 3
"""What a search knows of its placement, as places of one array: memory that is missing, stall,
blocks of migration that count, and how many placements were judged so far."""


def missing_memory(problem: Problem, mass: FloatArray) -> float:
    """Blocks by which a placement is above the memory; 0.0: it fits, but for rounding."""
    excess = memory_needed(problem, mass) - problem.memory
    return excess if excess > TINY else 0.0


def shift(mass: FloatArray, choice: int, amount: float) -> None:
    """Change the mass at a choice; what rounding leaves of nothing is nothing."""
    mass[choice] += amount
    if mass[choice] < TINY:
        mass[choice] = 0.0


def rounded(problem: Problem, order: IntArray, wanted: FloatArray, layout: IntArray) -> None:
    """Large streams first, each where most of the divided solution's mass is left.

    Args:
        problem: The instance.
        order: Streams by falling size.
        wanted: Mass at each choice, of shape (choices,).
        layout: Overwritten.
    """
    left = wanted.copy()
    for stream in order:
        best = 0
        for choice in range(left.shape[0]):
            # Of equals the one that offloads more: it rather fits.
            if left[choice] >= left[best]:
                best = choice
        layout[stream] = best
        left[best] -= problem.sizes[stream]


def improve(
    problem: Problem, layout: IntArray, goal: float, budget: int, pairs: bool
) -> FloatArray:
    """Move and exchange streams while that lowers first the memory that is missing, then the cost.

    The cost is the stall and the moves that count.

    Args:
        problem: The instance.
        layout: Where to begin; overwritten with the best one found.
        goal: Cost that is good enough.
        budget: Placements to judge; a little above it is possible.
        pairs: Whether two streams are also moved at once, each to any choice.

    Returns:
        Its memory that is missing, stall and moves, and the number of placements judged.
    """
    mass = np.zeros(problem.numbers.shape[0])
    left = np.zeros(problem.room.shape[0])
    state = np.zeros(4)
    for stream in range(layout.shape[0]):
        mass[layout[stream]] += problem.sizes[stream]
        state[MOVED] += problem.moves[stream, layout[stream]]
    state[MISSING] = missing_memory(problem, mass)
    state[STALL] = stall(problem, mass, left, np.inf)
    state[JUDGED] = 1.0
    better = True
    while better and state[JUDGED] < budget:
        better = one_elsewhere(problem, layout, mass, left, state)
        if state[MISSING] <= 0.0 and state[STALL] + state[MOVED] <= goal:
            break
        if two_exchanged(problem, layout, mass, left, state, goal, budget):
            better = True
        if pairs and not better and state[MISSING] <= 0.0:
            better = two_elsewhere(problem, layout, mass, left, state, budget)
    return state


def one_elsewhere(
    problem: Problem, layout: IntArray, mass: FloatArray, left: FloatArray, state: FloatArray
) -> bool:
    """Each stream once to where it is best; whether any moved. Updates all but the problem."""
    better = False
    for stream in range(layout.shape[0]):
        size = problem.sizes[stream]
        old = layout[stream]
        best = old
        others = state[MOVED] - problem.moves[stream, old]
        shift(mass, old, -size)
        for choice in range(mass.shape[0]):
            if choice != old:
                mass[choice] += size
                moved = others + problem.moves[stream, choice]
                if accepted(problem, mass, left, state, moved):
                    best = choice
                shift(mass, choice, -size)
        mass[best] += size
        layout[stream] = best
        better = better or best != old
    return better


def accepted(
    problem: Problem, mass: FloatArray, left: FloatArray, state: FloatArray, moved: float
) -> bool:
    """Judge a placement, and take its figures over if it is better."""
    missing = missing_memory(problem, mass)
    if missing > state[MISSING]:
        return False
    state[JUDGED] += 1.0
    limit = state[STALL] + state[MOVED] - moved
    found = stall(problem, mass, left, np.inf if missing < state[MISSING] else limit)
    if missing < state[MISSING] or found < limit - TINY:
        state[MISSING] = missing
        state[STALL] = found
        state[MOVED] = moved
        return True
    return False


def two_exchanged(
    problem: Problem,
    layout: IntArray,
    mass: FloatArray,
    left: FloatArray,
    state: FloatArray,
    goal: float,
    budget: int,
) -> bool:
    """Streams that take each other's choice, the first that pays; whether any did."""
    better = False
    for one in range(layout.shape[0]):
        for other in range(one + 1, layout.shape[0]):
            here, there = layout[one], layout[other]
            more = problem.sizes[one] - problem.sizes[other]
            if here == there or more == 0.0:
                continue
            moved = state[MOVED] + problem.moves[one, there] + problem.moves[other, here]
            moved -= problem.moves[one, here] + problem.moves[other, there]
            shift(mass, here, -more)
            shift(mass, there, more)
            if accepted(problem, mass, left, state, moved):
                layout[one], layout[other] = there, here
                better = True
                if state[MISSING] <= 0.0 and state[STALL] + state[MOVED] <= goal:
                    return True
            else:
                shift(mass, here, more)
                shift(mass, there, -more)
        if state[JUDGED] >= budget:
            break
    return better


def two_elsewhere(
    problem: Problem,
    layout: IntArray,
    mass: FloatArray,
    left: FloatArray,
    state: FloatArray,
    budget: int,
) -> bool:
    """Two streams at once, each to any choice; whether any moved."""
    better = False
    choices = mass.shape[0]
    for one in range(layout.shape[0]):
        for other in range(one + 1, layout.shape[0]):
            here, there = layout[one], layout[other]
            others = state[MOVED] - problem.moves[one, here] - problem.moves[other, there]
            shift(mass, here, -problem.sizes[one])
            shift(mass, there, -problem.sizes[other])
            for first in range(choices):
                mass[first] += problem.sizes[one]
                # With one stream less a step is no longer: where even that does not pay, none does.
                best = state[STALL] + state[MOVED] - others - problem.moves[one, first]
                state[JUDGED] += 1.0
                if stall(problem, mass, left, best) < best - TINY:
                    for second in range(choices):
                        mass[second] += problem.sizes[other]
                        moved = others + problem.moves[one, first] + problem.moves[other, second]
                        if accepted(problem, mass, left, state, moved):
                            layout[one], layout[other] = first, second
                            better = True
                        shift(mass, second, -problem.sizes[other])
                shift(mass, first, -problem.sizes[one])
            mass[layout[one]] += problem.sizes[one]
            mass[layout[other]] += problem.sizes[other]
            if state[JUDGED] >= budget:
                return better
    return better
