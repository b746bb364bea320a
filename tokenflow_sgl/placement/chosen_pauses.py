"""Which streams of a batch pause, so that the others fit the memory and keep their objectives.

The stream with the most KV and deposited tokens pauses, one after the other, until the others have
a placement. An objective that its stream cannot keep even alone pauses none; and what paused before
the last one is tried again, for that one may have kept it out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray
from tokenflow_sgl.placement.compiled import Kernels
from tokenflow_sgl.placement.instance import Installed
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.placement.machine import Machine
from tokenflow_sgl.placement.plan_terms import Batch, PauseReason, allowed_seconds
from tokenflow_sgl.placement.solver import Placement, lower_bound

Solve = Callable[[FloatArray, Layouts, Machine, Installed | None], Placement | None]
"""A backend: `solver.solve` or `milp.solve_milp` with its settings."""
MachineFor = Callable[[IntArray], Machine]
"""The machine of a step in which the streams at these places run: the fewer, the less it reads."""
_ROUNDING = 2e-6
"""Share of a step by which the bound may be too high."""


@dataclass(frozen=True, slots=True, eq=False)
class Chosen:
    """Which streams run and which pause.

    Attributes:
        runs: Places of the streams that run, ascending.
        placed: Their placement; None: all pause.
        paused: Places of the others, in the order in which they were chosen, each with why.
    """

    runs: IntArray
    placed: Placement | None
    paused: tuple[tuple[int, PauseReason], ...]


class Pauses:
    """Chooses the streams of one batch that pause.

    Args:
        batch: The streams.
        sizes: Blocks of each in one layer, of shape (streams,).
        layouts: The choices.
        machine: Of the streams that run.
        backend: What solves.
        violations: Streams whose objective a step may miss.
        installed: The placement in force; None: there is none.
        kernels: The inner loops of bounds; None: not compiled.
    """

    def __init__(
        self,
        batch: Batch,
        sizes: FloatArray,
        layouts: Layouts,
        machine: Machine | MachineFor,
        backend: Solve,
        *,
        violations: int,
        installed: Installed | None,
        kernels: Kernels | None,
    ) -> None:
        self._batch, self._sizes, self._layouts = batch, sizes, layouts
        self._machine, self._backend, self._kernels = machine, backend, kernels
        self._violations, self._installed = violations, installed
        self._objective = batch.tbt_slo.copy()
        self._hopeless: BoolArray | None = None  # looked for when an objective is missed

    def chosen(self, last: BoolArray | None) -> Chosen:
        """Pause streams until the others have a placement.

        Args:
            last: Streams that pause only when all others do, of shape (streams,); None: none is.
        """
        runs = np.arange(self._batch.tokens.size)
        paused: list[tuple[int, PauseReason]] = []
        while runs.size:
            found = self._placed(runs)
            if found is PauseReason.OBJECTIVE and self._drop_hopeless(runs):
                runs, paused = np.arange(self._batch.tokens.size), []
                continue
            if isinstance(found, Placement):
                return self._with_kept_out(Chosen(runs, found, tuple(paused)))
            largest = _victim(self._batch, runs, last)
            paused.append((largest, found))
            runs = runs[runs != largest]
        return self._with_kept_out(Chosen(runs, None, tuple(paused)))

    def _placed(self, runs: IntArray) -> Placement | PauseReason:
        """A placement of these streams, or why there is none."""
        sizes, machine = self._sizes[runs], machine_for(self._machine, runs)
        allowed = self._allowed(runs)
        if np.isfinite(allowed):  # a bound is found sooner than that no placement is short enough
            lowest = lower_bound(sizes, self._layouts, machine, self._kernels)
            if lowest > allowed * (1.0 + _ROUNDING):
                return PauseReason.OBJECTIVE if np.isfinite(lowest) else PauseReason.MEMORY
        installed = _of(self._installed, runs)
        found = self._backend(sizes, self._layouts, machine, installed)
        if installed is not None and found is not None and found.seconds > allowed:
            # Rather all migration that it takes than a stream that pauses.
            found = self._backend(sizes, self._layouts, machine, None)
        if found is None:
            return PauseReason.MEMORY
        return found if found.seconds <= allowed else PauseReason.OBJECTIVE

    def _allowed(self, runs: IntArray) -> float:
        """The longest step of these streams; what no placement keeps is one of the violations."""
        missed = 0 if self._hopeless is None else int(np.count_nonzero(self._hopeless[runs]))
        return allowed_seconds(self._objective[runs], max(self._violations - missed, 0))

    def _drop_hopeless(self, runs: IntArray) -> bool:
        """Take away objectives that their streams do not keep even alone; whether there were any.

        Bounds say so of all streams, the search of one that is the last to run.
        """
        if self._hopeless is not None:
            if runs.size > 1:
                return False
            self._hopeless[runs], self._objective[runs] = True, np.inf
            return True
        self._hopeless = np.zeros(self._objective.shape, dtype=np.bool_)
        for place in np.flatnonzero(np.isfinite(self._objective)):
            alone = np.array([place])
            machine = machine_for(self._machine, alone)
            lowest = lower_bound(self._sizes[alone], self._layouts, machine, self._kernels)
            objective = self._objective[place] * (1.0 + _ROUNDING)
            self._hopeless[place] = objective < lowest < np.inf
        self._objective[self._hopeless] = np.inf
        return bool(self._hopeless.any())

    def _with_kept_out(self, chosen: Chosen) -> Chosen:
        """And the streams that only the last one to pause had kept out, latest first."""
        if not chosen.paused:
            return chosen
        *before, (last, _) = chosen.paused
        runs, placed, paused = chosen.runs, chosen.placed, list(chosen.paused)
        for one in reversed(before):
            place = one[0]
            if (
                self._sizes[place] >= self._sizes[last]
                and self._objective[place] <= self._objective[last]
            ):
                continue  # it asks for no less than the last one, with which there is no placement
            more = np.sort(np.append(runs, place))
            found = self._placed(more)
            if isinstance(found, Placement):
                runs, placed = more, found
                paused.remove(one)
        return Chosen(runs, placed, tuple(paused))


def machine_for(machine: Machine | MachineFor, places: IntArray) -> Machine:
    """The machine of a step in which the streams at these places run."""
    return machine if isinstance(machine, Machine) else machine(places)


def _victim(batch: Batch, runs: IntArray, last: BoolArray | None) -> int:
    """The stream with the most KV and deposited tokens, of those that may pause."""
    if last is not None and not last[runs].all():
        runs = runs[np.logical_not(last[runs])]
    return int(runs[np.argmax(batch.tokens[runs] + batch.deposit[runs])])


def _of(installed: Installed | None, runs: IntArray) -> Installed | None:
    """The placement in force, of these streams only."""
    return None if installed is None else replace(installed, layout=installed.layout[runs])
