"""What would make a plan's stalls go away: how much memory, or how fast a link.

Found by bisection over the solver with little effort, so that they are a little too large rather
than too small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tokenflow_sgl.contract import FloatArray
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.placement.machine import Machine
from tokenflow_sgl.placement.solver import SearchEffort, solve

NO_STALL = 0.001
"""Share of the layers' time: a step that stalls no longer is one without stalls."""
_LITTLE = SearchEffort(near=NO_STALL, search=200, pairs=False, branch=1000)
_CLOSE = 0.01
_FASTEST = 2.0**20
"""Times the link's rate up to which is looked."""


def memory_without_stalls(sizes: FloatArray, layouts: Layouts, machine: Machine) -> float:
    """Blocks of device memory with which a step does not stall, within 1 %.

    Arguments and errors as of `solver.solve`.
    """
    most = float(sizes.sum()) * machine.layers  # all KV on the device: nothing is copied
    return _least(
        lambda memory: _smooth(sizes, layouts, replace(machine, memory=memory)), 0.0, most
    )


def bandwidth_without_stalls(sizes: FloatArray, layouts: Layouts, machine: Machine) -> float | None:
    """Blocks per second with which a step does not stall, within 1 %; None: no link does that.

    Arguments and errors as of `solver.solve`.
    """

    def smooth(bandwidth: float) -> bool:
        return _smooth(sizes, layouts, replace(machine, bandwidth=bandwidth))

    if solve(sizes, layouts, machine, effort=_LITTLE) is None:
        return None
    low, high = 0.0, machine.bandwidth
    while not smooth(high):
        low, high = high, 2.0 * high
        if high > _FASTEST * machine.bandwidth:
            return None
    return _least(smooth, low, high)


def _smooth(sizes: FloatArray, layouts: Layouts, machine: Machine) -> bool:
    placed = solve(sizes, layouts, machine, effort=_LITTLE)
    return placed is not None and placed.seconds <= (1.0 + NO_STALL) * machine.computing


def _least(enough: Callable[[float], bool], low: float, high: float) -> float:
    """The least value that is enough, of those above `low`; `high` is."""
    while high - low > _CLOSE * high:
        middle = (low + high) / 2.0
        if enough(middle):
            high = middle
        else:
            low = middle
    return high
