"""A plan for the next steps of a batch: placement, streams to pause, and how long it lasts.

OrbitFlow sections 3.3 and 3.4. A plan that just fits the memory expires within a few steps, because
each step adds a token to each stream. So it is made for the blocks that the streams will have some
steps ahead (`Terms.ahead`). Where no placement fits the memory or keeps the objectives, the stream
with the most KV and deposited tokens is paused, one after the other.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray
from tokenflow_sgl.placement.compiled import Kernels
from tokenflow_sgl.placement.instance import NEW, Installed
from tokenflow_sgl.placement.layouts import Layouts, half_phases
from tokenflow_sgl.placement.machine import Machine, fits, needed_blocks
from tokenflow_sgl.placement.solver import Placement, lower_bound, solve, step_seconds

PAUSED = -1
"""Choice of a stream that a plan pauses."""
Solve = Callable[[FloatArray, Layouts, Machine, Installed | None], Placement | None]
"""A backend: `solver.solve` or `milp.solve_milp` with its settings."""
MachineFor = Callable[[IntArray], Machine]
"""The machine of a step in which the streams at these places run: the fewer, the less it reads."""


class Reason(enum.Enum):
    """Why a stream is paused."""

    MEMORY = "memory"
    """No placement of the streams fits the memory."""
    OBJECTIVE = "objective"
    """None was found with a step short enough."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The streams of a decode step; arrays of shape (streams,).

    Attributes:
        tokens: KV tokens of each, >= 1.
        deposit: Tokens that it has generated and its client has not got yet, >= 0.
        tbt_slo: Longest step in seconds that its objective allows, > 0.0; infinite: any.

    Raises:
        ValueError: There is no stream, or a value is outside its range.
    """

    tokens: IntArray
    deposit: IntArray
    tbt_slo: FloatArray

    def __post_init__(self) -> None:
        if not self.tokens.size:
            raise ValueError("tokens is empty; allowed is one stream or more")
        if self.tokens.min() < 1:
            raise ValueError(f"tokens is {int(self.tokens.min())}; allowed is 1 or more")
        if self.deposit.shape != self.tokens.shape or self.tbt_slo.shape != self.tokens.shape:
            raise ValueError(
                "deposit or tbt_slo has other streams than tokens; allowed are as many"
            )
        if self.deposit.min() < 0:
            raise ValueError(f"deposit is {int(self.deposit.min())}; allowed is 0 or more")
        if not (self.tbt_slo > 0.0).all():
            raise ValueError("tbt_slo has a value that is not above 0; allowed is above 0")

    @classmethod
    def of(cls, tokens: IntArray, tbt_slo: float = np.inf) -> Batch:
        """A batch without deposits, and with one objective for all."""
        return cls(tokens, np.zeros_like(tokens), np.full(tokens.shape, tbt_slo))

    def only(self, places: IntArray) -> Batch:
        """Some of its streams."""
        return Batch(self.tokens[places], self.deposit[places], self.tbt_slo[places])


@dataclass(frozen=True, slots=True)
class Terms:
    """What decides, beside the batch and the machine.

    Attributes:
        block: Tokens of a block, >= 1.
        ahead: Decode steps for whose end the plan is made, >= 0.
        violations: Streams whose objective a step may miss (alpha in OrbitFlow 3.3.1), >= 0.
        worse: Share of a step by which a plan in force may be above the bound before it expires,
            beside what it is above it when it is made; > 0.0.
        window: Steps after which a plan expires at the latest, >= 1.
    """

    block: int = 16
    ahead: int = 16
    violations: int = 0
    worse: float = 0.02
    window: int = 256


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
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
    paused: tuple[tuple[int, Reason], ...]
    sizes: FloatArray
    seconds: float
    bound: float
    blocks: float
    lasts: int

    def installed(self, steps: float | None = None) -> Installed:
        """This plan as the one from which the next is reached by migration.

        Args:
            steps: As of `Installed`; None: as many as this one lasts.
        """
        lasts = max(self.lasts, 1) if steps is None else steps
        return Installed(self.layouts, np.where(self.layout == PAUSED, NEW, self.layout), lasts)


def plan(
    batch: Batch,
    machine: Machine | MachineFor,
    terms: Terms | None = None,
    *,
    layouts: Layouts | None = None,
    installed: Installed | None = None,
    last: BoolArray | None = None,
    kernels: Kernels | None = None,
    backend: Solve | None = None,
) -> Plan:
    """Place a batch, and pause streams until that is possible.

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
    terms = Terms() if terms is None else terms
    runs = np.arange(batch.tokens.size)
    today = machine_for(machine, runs)
    layouts = half_phases(today.layers) if layouts is None else layouts
    if backend is None:
        backend = _searching(kernels)
    sizes = blocks_after(batch.tokens, terms.ahead, terms.block)
    paused: list[tuple[int, Reason]] = []
    placed: Placement | None = None
    while runs.size:
        allowed = allowed_seconds(batch.tbt_slo[runs], terms.violations)
        today = machine_for(machine, runs)
        placed = backend(sizes[runs], layouts, today, _of(installed, runs))
        if installed is not None and placed is not None and placed.seconds > allowed:
            # Rather all migration that it takes than a stream that pauses.
            placed = backend(sizes[runs], layouts, today, None)
        if placed is not None and placed.seconds <= allowed:
            break
        reason = Reason.MEMORY if placed is None else Reason.OBJECTIVE
        largest = _victim(batch, runs, last)
        paused.append((largest, reason))
        runs = runs[runs != largest]
    layout = np.full(batch.tokens.size, PAUSED)
    if placed is None or not runs.size:
        return Plan(layouts, layout, tuple(paused), sizes, 0.0, 0.0, 0.0, terms.window)
    layout[runs] = placed.layout
    blocks = needed_blocks(sizes[runs], placed.layout, layouts, today)
    found = Plan(
        layouts, layout, tuple(paused), sizes, placed.seconds, placed.bound, blocks, terms.window
    )
    return replace(found, lasts=lasts(found, batch.tokens, today, terms, kernels))


def machine_for(machine: Machine | MachineFor, places: IntArray) -> Machine:
    """The machine of a step in which the streams at these places run."""
    return machine if isinstance(machine, Machine) else machine(places)


def allowed_seconds(tbt_slo: FloatArray, violations: int) -> float:
    """The longest step that misses the objectives of so many streams at most.

    Args:
        tbt_slo: Longest step that each stream's objective allows, of shape (streams,).
        violations: Streams whose objective may be missed.
    """
    if violations >= tbt_slo.size:
        return np.inf
    return float(np.sort(tbt_slo)[violations])


def blocks_after(tokens: IntArray, steps: int, block: int) -> FloatArray:
    """Blocks of each stream in one layer after so many decode steps, whole ones."""
    return np.ceil((tokens + steps) / block)


def lasts(
    made: Plan,
    tokens: IntArray,
    machine: Machine,
    terms: Terms,
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
    gap = made.seconds / made.bound - 1.0 if made.bound else 0.0

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


def _victim(batch: Batch, runs: IntArray, last: BoolArray | None) -> int:
    """The stream with the most KV and deposited tokens, of those that may pause."""
    if last is not None and not last[runs].all():
        runs = runs[np.logical_not(last[runs])]
    return int(runs[np.argmax(batch.tokens[runs] + batch.deposit[runs])])


def _searching(kernels: Kernels | None) -> Solve:
    def search(
        sizes: FloatArray, layouts: Layouts, machine: Machine, installed: Installed | None
    ) -> Placement | None:
        return solve(sizes, layouts, machine, installed=installed, kernels=kernels)

    return search


def _of(installed: Installed | None, runs: IntArray) -> Installed | None:
    """The placement in force, of these streams only."""
    return None if installed is None else replace(installed, layout=installed.layout[runs])
