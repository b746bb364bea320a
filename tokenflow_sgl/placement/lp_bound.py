"""The bound below all placements: a small linear program, solved by cutting planes.

Streams may be divided among the choices in it, so that it knows the batch only by its sum and its
size does not grow with it: one variable for each choice, and one for the stall. The planes are the
longest paths of `kernels`; the dual simplex method goes on from the last solution after each one.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.kernels import NOT_FEASIBLE, TINY, Problem, longest_path

_MOST_PIVOTS = 2000


def pivot(table: FloatArray, cost: FloatArray, row: int, column: int, rows: int) -> None:
    """Exchange a basic and a nonbasic variable of a condensed simplex table, in place."""
    factor = 1.0 / table[row, column]
    table[row] *= factor
    table[row, column] = factor
    for other in range(rows):
        if other != row:
            share = table[other, column]
            if share != 0.0:
                table[other] -= share * table[row]
                table[other, column] = -share * factor
    share = cost[column]
    cost -= share * table[row]
    cost[column] = -share * factor


def dual_simplex(
    table: FloatArray, cost: FloatArray, basic: IntArray, nonbasic: IntArray, rows: int
) -> bool:
    """Pivot until all right-hand sides are >= 0; whether there is a solution.

    Args:
        table: Rows `basic + table @ nonbasic = last column`, overwritten.
        cost: Of the nonbasic variables, >= 0.0, and last the negative objective; overwritten.
        basic: Which variable each row has, overwritten.
        nonbasic: Which variable each column has, overwritten.
        rows: In use.
    """
    variables = nonbasic.shape[0]
    for _ in range(_MOST_PIVOTS):
        row = -1
        least = -TINY
        for at in range(rows):
            if table[at, variables] < least:
                least = table[at, variables]
                row = at
        if row < 0:
            return True
        column = -1
        best = np.inf
        for at in range(variables):
            entry = table[row, at]
            if entry < -TINY:
                ratio = -cost[at] / entry
                # Of equal ratios the larger pivot: it keeps rounding errors small.
                if ratio < best - 1e-13 or (ratio <= best + 1e-13 and entry < table[row, column]):
                    best = ratio
                    column = at
        if column < 0:
            return False
        pivot(table, cost, row, column, rows)
        basic[row], nonbasic[column] = nonbasic[column], basic[row]
    return True


def bound(
    problem: Problem,
    fixed: FloatArray,
    amount: float,
    tilt: float,
    mass: FloatArray,
    reduced: FloatArray,
) -> float:
    """The least stall if streams could be divided among the choices: a small linear program.

    Its variables are the mass at each choice and the stall; planes of `longest_path` are added
    until they hold the stall.

    Args:
        problem: The instance.
        fixed: Mass at each choice that is given.
        amount: Mass that is to be divided, >= 0.0.
        tilt: Cost of an offloaded layer, small: of equal solutions the one with the fewest.
        mass: Of shape (choices,), overwritten: how `amount` is divided.
        reduced: Of shape (choices,), overwritten: by how much the stall grows at least with each
            unit that a choice has more.

    Returns:
        The bound; `NOT_FEASIBLE`: memory is too small for any division.
    """
    layers = problem.room.shape[0] - 1
    choices = fixed.shape[0]
    groups = problem.needs.shape[0]
    variables = choices + 1  # the last one is the stall
    most = 1 + groups + 4 * layers
    table = np.zeros((most, variables + 1))
    cost = np.zeros(variables + 1)
    basic = np.arange(variables, variables + most)
    nonbasic = np.arange(variables)
    for choice in range(choices):
        cost[choice] = tilt * problem.numbers[choice]
        table[0, choice] = -1.0
    cost[choices] = 1.0
    table[0, variables] = -amount
    # Memory is scaled by the number of layers, as are all coefficients of the table about 1.
    for group in range(groups):
        free = problem.memory
        for choice in range(choices):
            needed = problem.needs[group, choice]
            table[1 + group, choice] = needed / layers
            free -= needed * fixed[choice]
        table[1 + group, variables] = free / layers
    rows = 1 + groups
    slope = np.zeros(choices)
    whole = np.zeros(choices)
    while True:
        if not dual_simplex(table, cost, basic, nonbasic, rows):
            return NOT_FEASIBLE
        lowest = 0.0
        mass[:] = 0.0
        for row in range(rows):
            if basic[row] < choices:
                mass[basic[row]] = max(table[row, variables], 0.0)
            elif basic[row] == choices:
                lowest = table[row, variables]
        for choice in range(choices):
            whole[choice] = mass[choice] + fixed[choice]
        real, offset = longest_path(problem, whole, slope)
        if real <= lowest + 1e-7 or rows == most:
            break
        add_plane(problem, fixed, slope, offset, table, basic, nonbasic, rows)
        rows += 1
    reduced[:] = 0.0
    for at in range(variables):
        if nonbasic[at] < choices:
            reduced[nonbasic[at]] = max(cost[at], 0.0)
    return max(lowest, 0.0)


def add_plane(
    problem: Problem,
    fixed: FloatArray,
    slope: FloatArray,
    offset: float,
    table: FloatArray,
    basic: IntArray,
    nonbasic: IntArray,
    row: int,
) -> None:
    """Add `slope @ (mass + fixed) - stall <= offset` as a row, in today's nonbasic variables."""
    choices = slope.shape[0]
    variables = nonbasic.shape[0]
    right = offset
    for choice in range(choices):
        right -= slope[choice] * fixed[choice]
    table[row, variables] = right
    for at in range(variables):
        if nonbasic[at] < choices:
            table[row, at] = slope[nonbasic[at]]
        elif nonbasic[at] == choices:
            table[row, at] = -1.0
    for other in range(row):
        share = 0.0
        if basic[other] < choices:
            share = slope[basic[other]]
        elif basic[other] == choices:
            share = -1.0
        if share != 0.0:
            table[row] -= share * table[other]
