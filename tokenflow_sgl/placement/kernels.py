"""What the solver computes thousands of times: the memory and the stalls of a placement.

Plain functions of arrays and numbers, which `compiled` hands to numba if it is there; without it
they run as they are and give the same plans, some hundred times slower. All amounts are in blocks:
times, too, as what the link moves in them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray

NOT_FEASIBLE = 1e300
"""Stall of what does not fit."""
TINY = 1e-9
"""Of the batch's blocks: less than that is rounding."""


class Problem(NamedTuple):
    """One instance, as the kernels read it; sizes are scaled so that their sum is 1.

    Attributes:
        sizes: Of each stream, of shape (streams,).
        moves: Blocks of migration that count for each choice of each stream, (streams, choices).
        room: Blocks that the link moves while a layer computes, of shape (layers + 1,); [0] is 0.
        memory: Of the device.
        numbers: Layers that each choice offloads, of shape (choices,).
        needs: Layers of memory that each choice needs while a group of choices stages its KV
            together: those that it keeps, and one if it is of the group; (groups, choices).
        first, kind, due: The copies by the layer at whose end they may begin: those of layer p are
            first[p] to first[p + 1] - 1, each with its choice and the layer that waits for it.
        windows: How many copies of a choice neither begin before layer p ends nor are due after
            layer j starts; of shape ((layers + 1) * (layers + 1), choices), p in front.
    """

    sizes: FloatArray
    moves: FloatArray
    room: FloatArray
    memory: float
    numbers: IntArray
    needs: FloatArray
    first: IntArray
    kind: IntArray
    due: IntArray
    windows: FloatArray


def memory_needed(problem: Problem, mass: FloatArray) -> float:
    """Blocks on the device: resident and staging (OrbitFlow Eq. 1).

    Args:
        problem: The instance.
        mass: Sum of the sizes at each choice, of shape (choices,).
    """
    most = 0.0
    for group in range(problem.needs.shape[0]):
        needed = 0.0
        for choice in range(mass.shape[0]):  # compiled, sooner than a product of matrices
            needed += problem.needs[group, choice] * mass[choice]
        most = max(most, needed)
    return most


def stall(problem: Problem, mass: FloatArray, left: FloatArray, limit: float) -> float:
    """How long the device waits in a step, by earliest deadline first.

    Args:
        problem: The instance.
        mass: Sum of the sizes at each choice.
        left: Of shape (layers + 1,), overwritten: what is still to be copied for each layer.
        limit: It stops where it is longer than this, which is then all that is known.
    """
    layers = problem.room.shape[0] - 1
    left[:] = 0.0
    waited: float = 0.0
    open_until = 0  # the last layer for which a copy is under way
    for layer in range(layers + 1):
        if left[layer] > 0.0:
            waited += left[layer]
            if waited > limit:
                return waited
        room = problem.room[layer]
        following = layer + 1
        while room > 0.0 and following <= open_until:
            moved = min(left[following], room)
            left[following] -= moved
            room -= moved
            following += 1
        for at in range(problem.first[layer], problem.first[layer + 1]):
            amount = mass[problem.kind[at]]
            if amount > 0.0:
                left[problem.due[at]] += amount
                open_until = max(open_until, problem.due[at])
    return waited


def longest_path(problem: Problem, mass: FloatArray, slope: FloatArray) -> tuple[float, float]:
    """The stall as a longest path through the layers, and the plane that it lies on.

    The stall is convex in `mass`, so that `slope @ other - offset` bounds the stall of any other
    mass from below.

    Args:
        problem: The instance.
        mass: Sum of the sizes at each choice.
        slope: Of shape (choices,), overwritten.

    Returns:
        The stall, and the offset.
    """
    layers = problem.room.shape[0] - 1
    computed = np.zeros(layers + 1)
    for layer in range(1, layers + 1):
        computed[layer] = computed[layer - 1] + problem.room[layer]
    blocks = np.dot(problem.windows, mass)
    waited = np.zeros(layers + 1)
    source = np.full(layers + 1, -1)
    for due in range(1, layers + 1):
        waited[due] = waited[due - 1]
        for begin in range(due):
            copied = blocks[begin * (layers + 1) + due]
            if copied > 0.0:
                until = waited[begin] + copied - (computed[due - 1] - computed[begin])
                if until > waited[due] + TINY:
                    waited[due] = until
                    source[due] = begin
    slope[:] = 0.0
    offset = 0.0
    due = layers
    while due > 0:
        begin = source[due]
        if begin < 0:
            due -= 1
            continue
        slope += problem.windows[begin * (layers + 1) + due]
        offset += computed[due - 1] - computed[begin]
        due = begin
    return waited[layers], offset
