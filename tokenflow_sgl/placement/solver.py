"""The placement of a batch that makes a decode step shortest.

A step depends on the streams only through the sum of their blocks at each choice
(`step_latency`), so a linear program of a dozen variables bounds all placements from below
(`lp_bound`). Its solution is rounded to whole streams and improved by local search; up to `EXACT`
streams, branch and bound then searches the rest. OrbitFlow gives the same problem to Gurobi
(section 3.3); `milp` gives it to scipy's HiGHS, which is slower by two to three orders of
magnitude.

Nothing here is random or looks at a clock: the same input gives the same placement.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.compiled import Kernels, kernels_of
from tokenflow_sgl.placement.instance import Installed, instance
from tokenflow_sgl.placement.kernels import NOT_FEASIBLE, Problem
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.placement.local_search import JUDGED, MISSING, MOVED, STALL
from tokenflow_sgl.placement.machine import Machine

EXACT = 8
"""Streams up to which branch and bound follows."""
_TILT = 1e-6
"""Share of a step at most by which the bound may be off, for the sake of fewer offloaded layers."""


@dataclass(frozen=True, slots=True)
class SearchEffort:
    """How long the solver searches for a placement.

    Attributes:
        near: Share of the step: a placement so close to the bound, or to the best one that is left,
            is good enough.
        search: Placements that a local search judges at most.
        pairs: Whether a local search also moves two streams at once, each to any choice.
        branch: Placements that branch and bound judges at most.
    """

    near: float
    search: int
    pairs: bool
    branch: int


SMALL = SearchEffort(near=1e-6, search=500, pairs=False, branch=100_000)
"""Up to four streams: the optimum, but for a millionth of the step."""
MIDDLE = SearchEffort(near=0.002, search=600, pairs=True, branch=4500)
"""Up to `EXACT` streams."""
LARGE = SearchEffort(near=0.003, search=4000, pairs=True, branch=0)
"""More streams."""


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The placement that the solver found, its step, and a lower bound of it.

    Attributes:
        layout: Choice of each stream, of shape (streams,).
        seconds: Of a decode step.
        bound: Seconds: no placement of these choices makes a shorter step.
        exact: No placement costs less, within the effort's `near`.
        work: Placements that were judged.
    """

    layout: IntArray
    seconds: float
    bound: float
    exact: bool
    work: int

    @property
    def gap(self) -> float:
        """Share of the step by which it is above the bound."""
        return self.seconds / self.bound - 1.0 if self.bound else 0.0


def effort_for(streams: int) -> SearchEffort:
    """The effort that a batch of so many streams is worth."""
    if streams <= 4:
        return SMALL
    return MIDDLE if streams <= EXACT else LARGE


def solve(
    sizes: FloatArray,
    layouts: Layouts,
    machine: Machine,
    *,
    installed: Installed | None = None,
    effort: SearchEffort | None = None,
    kernels: Kernels | None = None,
) -> Placement | None:
    """The placement with the least step time and migration; None: none fits the memory.

    Args:
        sizes: Blocks of each stream in one layer, of shape (streams,), > 0.0; at least one.
        layouts: The choices.
        machine: Times, link and memory.
        installed: The placement in force: its migration counts, and the search also begins there.
        effort: How long is searched; None: by the number of streams.
        kernels: The inner loops; None: not compiled.

    Raises:
        ValueError: There is no stream, a size is not above 0, or the numbers of layers differ.
    """
    problem = instance(sizes, layouts, machine, installed)
    effort = effort_for(sizes.size) if effort is None else effort
    kernels = kernels_of(compiled=False) if kernels is None else kernels
    computing = float(problem.room.sum())
    tilt = _tilt(problem)
    wanted, reduced = np.zeros(len(layouts)), np.zeros(len(layouts))
    lowest = kernels.bound(problem, np.zeros(len(layouts)), 1.0, tilt, wanted, reduced)
    if lowest >= NOT_FEASIBLE:
        return None
    near = effort.near * (computing + lowest)
    # Large streams first; equal ones that stay where they are for the same price together.
    order = np.lexsort((problem.moves.argmin(axis=1), -problem.sizes))
    layout, found = _searched(problem, order, wanted, lowest + near, effort, kernels, installed)
    work = int(found[JUDGED])
    cost = float(found[STALL] + found[MOVED]) if found[MISSING] <= 0.0 else NOT_FEASIBLE
    exact = cost <= lowest + near
    if effort.branch and not exact:
        least = 0.0 if cost >= NOT_FEASIBLE else near
        cost, more = kernels.branch(
            problem, order, lowest, reduced, tilt, layout, cost, least, effort.branch
        )
        exact = more < effort.branch
        work += more
    if cost >= NOT_FEASIBLE:
        return None
    scale = float(sizes.sum()) / machine.bandwidth
    stall = cost - float(problem.moves[np.arange(sizes.size), layout].sum())
    return Placement(
        layout,
        machine.computing + stall * scale,
        machine.computing + float(lowest) * scale,
        bool(exact),
        work,
    )


def lower_bound(
    sizes: FloatArray, layouts: Layouts, machine: Machine, kernels: Kernels | None = None
) -> float:
    """Seconds: no placement of these choices makes a shorter step; infinite: none fits.

    Arguments and errors as of `solve`.
    """
    problem = instance(sizes, layouts, machine)
    kernels = kernels_of(compiled=False) if kernels is None else kernels
    choices = len(layouts)
    lowest = kernels.bound(
        problem, np.zeros(choices), 1.0, _tilt(problem), np.zeros(choices), np.zeros(choices)
    )
    if lowest >= NOT_FEASIBLE:
        return np.inf
    return machine.computing + lowest * float(sizes.sum()) / machine.bandwidth


def step_seconds(
    sizes: FloatArray,
    layout: IntArray,
    layouts: Layouts,
    machine: Machine,
    kernels: Kernels | None = None,
) -> float:
    """Seconds of a decode step, as `step_latency.decode_step`, from the sums at each choice alone.

    Arguments and errors as of `solve`.
    """
    problem = instance(sizes, layouts, machine)
    kernels = kernels_of(compiled=False) if kernels is None else kernels
    mass = np.bincount(layout, weights=problem.sizes, minlength=len(layouts))
    waited = kernels.stall(problem, mass, np.zeros(machine.layers + 1), np.inf)
    return machine.computing + waited * float(sizes.sum()) / machine.bandwidth


def _tilt(problem: Problem) -> float:
    """Cost of an offloaded layer in the bound, which decides between equal solutions only."""
    return _TILT * float(problem.room.sum()) / (problem.room.size - 1)


def _searched(
    problem: Problem,
    order: IntArray,
    wanted: FloatArray,
    goal: float,
    effort: SearchEffort,
    kernels: Kernels,
    installed: Installed | None,
) -> tuple[IntArray, FloatArray]:
    """The best of the local searches from today's placement and from the bound's solution.

    One that reaches the goal ends it. Where neither fits the memory, a third one begins with all
    layers offloaded.
    """
    streams = problem.sizes.size
    found: list[tuple[tuple[float, float], IntArray, FloatArray]] = []

    def search(layout: IntArray) -> tuple[float, float]:
        state = kernels.improve(problem, layout, goal, effort.search, effort.pairs)
        rank = float(state[MISSING]), float(state[STALL] + state[MOVED])
        found.append((rank, layout, state))
        return rank

    fits, reaches = (0.0, np.inf), (0.0, goal)
    # A choice without moves is today's one, or offloads more than it.
    if installed is None or search(problem.moves.argmin(axis=1)) > reaches:
        layout = np.zeros(streams, dtype=np.int64)
        kernels.rounded(problem, order, wanted, layout)
        search(layout)
    if min(rank for rank, _, _ in found) > fits:
        search(np.full(streams, int(problem.numbers.argmax()), dtype=np.int64))
    _, layout, state = min(found, key=lambda one: one[0])
    state[JUDGED] = sum(each[JUDGED] for _, _, each in found)
    return layout, state
