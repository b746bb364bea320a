"""Systems that decide, before decode steps, which layers' KV lies on the host.

Each is asked before every step whose blocks differ from the last one's, and answers with what that
step takes. All have the same choices but ours, whose default is `half_phases`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray
from tokenflow_sgl.placement import (
    PAUSED,
    Batch,
    Kernels,
    Layouts,
    Machine,
    PlacementTerms,
    blocks_after,
    fits,
    half_phases,
    step_seconds,
)
from tokenflow_sgl.placement.baselines import Baseline, deepspeed_seconds
from tokenflow_sgl.placement.controller import (
    CurrentPlan,
    Settings,
    Trigger,
    next_plan,
    stopgap,
    trigger,
)

MachineOf = Callable[[int, int], Machine]
"""The machine of a step with so many streams that hold so many KV tokens together."""


@dataclass(frozen=True, slots=True, eq=False)
class BatchView:
    """The batch before a decode step; arrays of shape (streams,).

    Attributes:
        slots: Which stream each place is, in order of arrival.
        tokens: KV tokens of each.
        deposit: Tokens that it has generated and its client has not got.
        changed: A stream has come or gone since the last step.
        step: Decode steps so far.
        machine: Makes the machine of the streams that run.
    """

    slots: tuple[int, ...]
    tokens: IntArray
    deposit: IntArray
    changed: bool
    step: int
    machine: MachineOf


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """What a system decides for the next steps.

    Attributes:
        runs: Streams that are in the step, of shape (streams,); the others pause.
        seconds: Of a step.
        migrating: Seconds that the link takes before it, to bring KV to the device.
        leaving: Blocks that leave the device before it.
        steps: Decode steps after which it wants to be asked again though no block is added.
    """

    runs: BoolArray
    seconds: float
    migrating: float = 0.0
    leaving: float = 0.0
    steps: int = 1 << 30


class Placer(Protocol):
    """A system; keeps what it has decided."""

    def place(self, view: BatchView) -> Placed:
        """Decide for the steps from now on."""
        ...


def _all(view: BatchView) -> BoolArray:
    return np.ones(len(view.slots), dtype=np.bool_)


class DeepSpeed:
    """DeepSpeed-Inference: all KV on the host, one layer ahead."""

    def __init__(self, block: int) -> None:
        self._block = block

    def place(self, view: BatchView) -> Placed:
        """Let all streams run."""
        machine = view.machine(len(view.slots), int(view.tokens.sum()))
        sizes = blocks_after(view.tokens, 0, self._block)
        return Placed(_all(view), deepspeed_seconds(sizes, machine))


class _Uniform:
    """What the other baselines share: a placement in force, and what it costs to reach it."""

    def __init__(self, block: int, layouts: Layouts, kernels: Kernels | None) -> None:
        self._block, self._layouts, self._kernels = block, layouts, kernels
        self._choice: dict[int, int] = {}
        self._most = int(np.argmax([len(choice) for choice in layouts.choices]))

    def place(self, view: BatchView) -> Placed:
        """Let all streams run; where nothing fits, with all of their KV on the host."""
        machine = view.machine(len(view.slots), int(view.tokens.sum()))
        sizes = blocks_after(view.tokens, 0, self._block)
        old = np.array([self._choice.get(slot, self._most) for slot in view.slots])
        layout = self.chosen(view, sizes, old, machine)
        if layout is None:
            layout = np.full(len(view.slots), self._most)
        moved = left = 0.0
        for place, slot in enumerate(view.slots):
            if slot in self._choice:
                was, now = int(old[place]), int(layout[place])
                moved += float(sizes[place]) * _moved(self._layouts, was, self._layouts, now)
                left += float(sizes[place]) * _moved(self._layouts, now, self._layouts, was)
        self._choice = dict(zip(view.slots, layout.tolist(), strict=True))
        seconds = step_seconds(sizes, layout, self._layouts, machine, self._kernels)
        return Placed(_all(view), seconds, moved / machine.bandwidth, left)

    def chosen(
        self, view: BatchView, sizes: FloatArray, old: IntArray, machine: Machine
    ) -> IntArray | None:
        """The choice of each stream; None: nothing fits."""
        raise NotImplementedError


class Static(_Uniform):
    """FlexGen: one layout, found before for the largest batch.

    Args:
        block: Tokens of a block.
        layouts: The choices.
        choice: The layout (see `baselines.flexgen`).
        kernels: The inner loops; None: not compiled.
    """

    def __init__(
        self, block: int, layouts: Layouts, choice: int, kernels: Kernels | None = None
    ) -> None:
        super().__init__(block, layouts, kernels)
        self._fixed = choice

    def chosen(
        self, view: BatchView, sizes: FloatArray, old: IntArray, machine: Machine
    ) -> IntArray | None:
        """The fixed choice of layers, the same for all streams."""
        return np.full(len(view.slots), self._fixed)


class EachStep(_Uniform):
    """Decides before every step whose blocks differ: Dynamic Heuristic.

    Args:
        block: Tokens of a block.
        layouts: The choices.
        baseline: Decides.
        kernels: The inner loops; None: not compiled.
    """

    def __init__(
        self, block: int, layouts: Layouts, baseline: Baseline, kernels: Kernels | None = None
    ) -> None:
        super().__init__(block, layouts, kernels)
        self._baseline = baseline

    def chosen(
        self, view: BatchView, sizes: FloatArray, old: IntArray, machine: Machine
    ) -> IntArray | None:
        """The layers that the baseline chooses anew in each step."""
        return self._baseline(sizes, self._layouts, machine, self._kernels)


class AtChanges(EachStep):
    """Decides when the batch changes, or what it decided does not fit: FlexGen+, SLO-aware.

    It looks some steps ahead, as our planner does; nothing is said of that in the paper.
    """

    def chosen(
        self, view: BatchView, sizes: FloatArray, old: IntArray, machine: Machine
    ) -> IntArray | None:
        """What it was, or anew."""
        if not view.changed and fits(sizes, old, self._layouts, machine):
            return old
        later = blocks_after(view.tokens, PlacementTerms().ahead, self._block)
        found = super().chosen(view, later, old, machine)
        return super().chosen(view, sizes, old, machine) if found is None else found


class OrbitFlow:
    """OrbitFlow's placements, by our controller and solver.

    Args:
        tbt_slo: Longest step that each stream's objective allows, seconds; infinite: no stream
            pauses for its sake.
        terms: What else decides.
        settings: When plans are made anew.
        kernels: The inner loops; None: not compiled.
        choices: Of a batch of so many streams, by the model's layers; None: `half_phases` for all.

    Attributes:
        plans: Made so far.
    """

    def __init__(
        self,
        tbt_slo: float,
        terms: PlacementTerms | None = None,
        settings: Settings | None = None,
        kernels: Kernels | None = None,
        choices: Callable[[int], Callable[[int], Layouts]] | None = None,
    ) -> None:
        self._slo, self._terms = tbt_slo, terms or PlacementTerms()
        self._settings, self._kernels = settings or Settings(), kernels
        self._choices = choices or (lambda _: half_phases)
        self._force: CurrentPlan | None = None
        self.plans = 0

    def place(self, view: BatchView) -> Placed:
        """Place a batch by the plan in force, or by a new one."""
        step, terms = view.step, self._terms
        why = trigger(self._force, view.slots, step, self._settings)
        moved = left = 0.0
        if why is None and self._force is not None:
            made = self._force.plan
            if stopgap(made, view.tokens, self._machine(view, made.layout), terms.block):
                why = Trigger.EXPIRY
        if why is not None:
            moved, left = self._plan(view, why)
        force = self._force
        assert force is not None
        plan, machine = force.plan, self._machine(view, force.plan.layout)
        runs = plan.layout != PAUSED
        sizes = blocks_after(view.tokens, 0, terms.block)[runs]
        seconds = step_seconds(sizes, plan.layout[runs], plan.layouts, machine, self._kernels)
        steps = max(force.made + plan.lasts - step, 1)
        return Placed(runs, seconds, moved / machine.bandwidth, left, steps)

    def _plan(self, view: BatchView, why: Trigger) -> tuple[float, float]:
        """Make a plan; returns the blocks that it brings to the device, and those that leave it."""
        before, self.plans = self._force, self.plans + 1
        slo = np.full(len(view.slots), self._slo)
        batch = Batch(view.tokens, view.deposit, slo)
        rows = len(view.slots)
        layers = view.machine(rows, int(view.tokens.sum())).layers

        def machine(places: IntArray) -> Machine:
            return view.machine(places.size, int(view.tokens[places].sum()))

        self._force = next_plan(
            before,
            view.slots,
            batch,
            machine,
            why,
            view.step,
            self._settings,
            self._terms,
            self._kernels,
            self._choices(rows)(layers),
        )
        if before is None:
            return 0.0, 0.0
        old = before.installed(view.slots)
        sizes = blocks_after(view.tokens, 0, self._terms.block)
        plan = self._force.plan
        moved = left = 0.0
        for size, was, now in zip(sizes, old.layout.tolist(), plan.layout.tolist(), strict=True):
            if was >= 0 and now != PAUSED:
                moved += float(size) * _moved(old.layouts, was, plan.layouts, now)
                left += float(size) * _moved(plan.layouts, now, old.layouts, was)
        return moved, left

    def _machine(self, view: BatchView, layout: IntArray) -> Machine:
        runs = layout != PAUSED
        return view.machine(int(np.count_nonzero(runs)), int(view.tokens[runs].sum()))


def _moved(before: Layouts, old: int, after: Layouts, new: int) -> int:
    """Layers that come to the device by a change of choice; exchanged, those that leave it."""
    return len(set(before.choices[old]) - set(after.choices[new]))
