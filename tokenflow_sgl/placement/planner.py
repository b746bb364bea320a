"""A plan for the next steps of a batch: placement, streams to pause, and how long it lasts.

OrbitFlow sections 3.3 and 3.4. A plan that just fits the memory expires within a few steps, because
each step adds a token to each stream. So it is made for the blocks that the streams will have some
steps ahead (`PlacementTerms.ahead`). Where no placement fits the memory or keeps the objectives,
streams are paused (`chosen_pauses`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray
from tokenflow_sgl.placement.chosen_pauses import MachineFor, Pauses, Solve, machine_for
from tokenflow_sgl.placement.compiled import Kernels
from tokenflow_sgl.placement.instance import NEW, Installed
from tokenflow_sgl.placement.layouts import Layouts, half_phases
from tokenflow_sgl.placement.machine import Machine, fits, needed_blocks
from tokenflow_sgl.placement.plan_terms import Batch, PauseReason, PlacementTerms, blocks_after
from tokenflow_sgl.placement.solver import Placement, lower_bound, solve, step_seconds

PAUSED = -1
"""Choice of a stream that a plan pauses."""


@dataclass(frozen=True, slots=True, eq=False)
class PlacementPlan:
    """Where KV lies in the next steps.

    Attributes:
        layouts: The choices.
        layout: Choice of each stream of the batch, of shape (streams,), or `PAUSED`.
        paused: Streams that pause, in the order in which they were chosen, each with why.
        sizes: Blocks of each stream in one layer for which it was made, of shape (streams,).
        seconds: Of a decode step with these sizes; 0.0: all streams pause.
        bound: Seconds: no placement of the streams that run makes it shorter.
        blocks: On the device, staging included.
        lasts: Steps from now on in which it fits and is not much above the bound.
    """

    layouts: Layouts
    layout: IntArray
    paused: tuple[tuple[int, PauseReason], ...]
    sizes: FloatArray
    seconds: float
    bound: float
    blocks: float
    lasts: int

    def installed(self, steps: float | None = None) -> Installed:
        """What a next plan starts from if this one is in force: its layouts, and how long it lasts.

        Args:
            steps: As of `Installed`; None: as many as this one lasts.
        """
        lasts = max(self.lasts, 1) if steps is None else steps
        return Installed(self.layouts, np.where(self.layout == PAUSED, NEW, self.layout), lasts)


def plan(
    batch: Batch,
    machine: Machine | MachineFor,
    terms: PlacementTerms | None = None,
    *,
    layouts: Layouts | None = None,
    installed: Installed | None = None,
    last: BoolArray | None = None,
    kernels: Kernels | None = None,
    backend: Solve | None = None,
) -> PlacementPlan:
    """Place a batch, and pause streams until that is possible.

    Objectives count as long as a stream can run that keeps its own; where none can, a plan is made
    without them, whose step may be longer than all of them.

    Args:
        batch: The streams.
        machine: Times, link and memory, in blocks of `terms.block` tokens; or what makes them for
            the streams that run, of which no pause makes the layers' times longer.
        terms: What else decides; None: the defaults.
        layouts: The choices; None: `half_phases`.
        installed: The placement in force.
        last: Streams that pause only when all others do, of shape (streams,); None: none is.
        kernels: The inner loops; None: not compiled.
        backend: What solves; None: `solver.solve` with these kernels.
    """
    terms = PlacementTerms() if terms is None else terms
    streams = batch.tokens.size
    if layouts is None:
        layouts = half_phases(machine_for(machine, np.arange(streams)).layers)
    sizes = blocks_after(batch.tokens, terms.ahead, terms.block)
    chosen = Pauses(
        batch,
        sizes,
        layouts,
        machine,
        _searching(kernels) if backend is None else backend,
        violations=terms.violations,
        installed=installed,
        kernels=kernels,
    ).chosen(last)
    runs, placed, paused = chosen.runs, chosen.placed, chosen.paused
    in_time = placed is not None and (placed.seconds <= batch.tbt_slo[runs]).any()
    if not in_time and PauseReason.OBJECTIVE in {reason for _, reason in paused}:
        # The pauses are of no use to any objective: rather late than never.
        return plan(
            replace(batch, tbt_slo=np.full(streams, np.inf)),
            machine,
            terms,
            layouts=layouts,
            installed=installed,
            last=last,
            kernels=kernels,
            backend=backend,
        )
    layout = np.full(streams, PAUSED)
    if placed is None:
        return PlacementPlan(layouts, layout, paused, sizes, 0.0, 0.0, 0.0, terms.window)
    layout[runs] = placed.layout
    today = machine_for(machine, runs)
    blocks = needed_blocks(sizes[runs], placed.layout, layouts, today)
    found = PlacementPlan(
        layouts, layout, paused, sizes, placed.seconds, placed.bound, blocks, terms.window
    )
    return replace(found, lasts=lasts(found, batch.tokens, today, terms, kernels))


def lasts(
    made: PlacementPlan,
    tokens: IntArray,
    machine: Machine,
    terms: PlacementTerms,
    kernels: Kernels | None = None,
) -> int:
    """Steps from now on in which a plan fits the memory and is not much above the bound.

    OrbitFlow's expiry (section 3.3): the step at which growing KV makes another placement better or
    does not fit any more. It is found by bisection: what is too large or too slow after some steps
    is taken to be so after all later ones.

    Args:
        made: The plan.
        tokens: KV tokens of each stream now.
        machine: As it was made for.
        terms: As it was made with.
        kernels: The inner loops; None: not compiled.
    """
    runs = np.flatnonzero(made.layout != PAUSED)
    layout = made.layout[runs]
    gap = max(made.seconds / made.bound - 1.0, 0.0) if made.bound else 0.0

    def holds(steps: int) -> bool:
        sizes = blocks_after(tokens[runs], steps, terms.block)
        if not fits(sizes, layout, made.layouts, machine):
            return False
        seconds = step_seconds(sizes, layout, made.layouts, machine, kernels)
        lowest = lower_bound(sizes, made.layouts, machine, kernels)
        return seconds <= lowest * (1.0 + gap + terms.worse)

    low, high = 0, terms.window  # it holds at `low`, and may at `high`
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _searching(kernels: Kernels | None) -> Solve:
    def search(
        sizes: FloatArray, layouts: Layouts, machine: Machine, installed: Installed | None
    ) -> Placement | None:
        return solve(sizes, layouts, machine, installed=installed, kernels=kernels)

    return search
