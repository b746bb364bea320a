"""The placement problem as a mixed-integer program for scipy's HiGHS.

Another backend, and the oracle of the tests: it shares with `solver` only the description of the
instance. It takes 10 ms to seconds where that takes 0.1 to 5 ms
(benchmarks/placement/README.md).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from tokenflow_sgl.contract import FloatArray
from tokenflow_sgl.placement.instance import Installed, instance
from tokenflow_sgl.placement.kernels import Problem
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.placement.machine import Machine
from tokenflow_sgl.placement.solver import Placement

_INFEASIBLE = 2
"""HiGHS's status, as scipy says it."""


def solve_milp(
    sizes: FloatArray,
    layouts: Layouts,
    machine: Machine,
    *,
    installed: Installed | None = None,
    gap: float = 1e-4,
    seconds: float = 60.0,
) -> Placement | None:
    """Find a placement like `solver.solve`, as an integer program by scipy's HiGHS.

    Args:
        sizes: Blocks of each stream in one layer, of shape (streams,).
        layouts: The choices.
        machine: Times, link and memory.
        installed: The placement in force, of which migration counts.
        gap: Share of the objective by which a placement may be above HiGHS's bound.
        seconds: After which it ends with the best one that it has.

    Raises:
        ValueError: As `solver.solve`.
        RuntimeError: There is none when the time is over.
    """
    problem = instance(sizes, layouts, machine, installed)
    streams, choices, layers = sizes.size, len(layouts), machine.layers
    assigned = streams * choices
    variables = assigned + choices + layers + 1
    cost = np.zeros(variables)
    cost[:assigned] = problem.moves.ravel()
    cost[-1] = 1.0
    most = np.full(variables, np.inf)
    most[:assigned] = 1.0
    conditions = [_steps(problem, assigned), _assignment(problem)]
    found = milp(
        cost,
        constraints=conditions,
        integrality=np.r_[np.ones(assigned), np.zeros(variables - assigned)],
        bounds=Bounds(0.0, most),
        options={"mip_rel_gap": gap, "time_limit": seconds},
    )
    if found.status == _INFEASIBLE:
        return None
    if found.x is None:
        raise RuntimeError(f"no placement in {seconds:g} s: {found.message}")
    layout = found.x[:assigned].reshape(streams, choices).argmax(axis=1)
    moved = float(problem.moves[np.arange(streams), layout].sum())
    scale = float(sizes.sum()) / machine.bandwidth
    lowest = found.mip_dual_bound
    if problem.moves.any():
        # HiGHS's bound is one of step and migration together. The step alone is bounded by the
        # linear program.
        cost[:assigned] = 0.0
        relaxed = milp(cost, constraints=conditions, bounds=Bounds(0.0, most))
        lowest = 0.0 if relaxed.fun is None else relaxed.fun
    return Placement(
        layout,
        (found.fun - moved) * scale,
        max(float(lowest) * scale, machine.computing),
        bool(found.mip_gap <= gap),
        int(found.mip_node_count),
    )


def _assignment(problem: Problem) -> LinearConstraint:
    """One choice for each stream, and the mass at each choice from it."""
    streams, choices = problem.moves.shape
    layers = problem.room.size - 1
    terms = _Terms(streams * choices + choices + layers + 1)
    for stream in range(streams):
        terms.add({stream * choices + choice: 1.0 for choice in range(choices)}, 1.0)
    for choice in range(choices):
        row = {stream * choices + choice: problem.sizes[stream] for stream in range(streams)}
        terms.add(row | {streams * choices + choice: -1.0}, 0.0)
    matrix, right = terms.matrix()
    return LinearConstraint(matrix, right, right)


def _steps(problem: Problem, offset: int) -> LinearConstraint:
    """Memory, and when layers start: the longest path's conditions, each as a row.

    The variables behind `offset` are the mass at each choice, and the starts of layers 1 to the end
    of the last one.
    """
    choices, layers = problem.numbers.size, problem.room.size - 1
    terms = _Terms(offset + choices + layers + 1)

    def start(layer: int) -> int:
        return offset + choices + layer - 1

    for needed in problem.needs:
        terms.add({offset + choice: needed[choice] for choice in range(choices)}, problem.memory)
    for layer in range(1, layers + 1):
        terms.add({start(layer): 1.0, start(layer + 1): -1.0}, -problem.room[layer])
    begins = np.flatnonzero(np.diff(problem.first))
    for begin in begins:
        for due in np.unique(problem.due):
            copies = problem.windows[begin * (layers + 1) + due]
            if due <= begin or not copies.any():
                continue
            row = {offset + choice: copies[choice] for choice in np.flatnonzero(copies)}
            row[start(due)] = -1.0
            if begin:
                row[start(begin)] = 1.0
            terms.add(row, -problem.room[begin])
    matrix, right = terms.matrix()
    return LinearConstraint(matrix, -np.inf, right)


class _Terms:
    """Rows of a sparse matrix with their right-hand sides."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.right: list[float] = []

    def add(self, row: dict[int, float], right: float) -> None:
        for column, value in row.items():
            self.row.append(len(self.right))
            self.column.append(int(column))
            self.value.append(float(value))
        self.right.append(float(right))

    def matrix(self) -> tuple[coo_array, FloatArray]:
        shape = (len(self.right), self.columns)
        entries = coo_array((self.value, (self.row, self.column)), shape=shape)
        return entries.tocsr(), np.array(self.right)
