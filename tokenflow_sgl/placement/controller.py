"""When a new plan is asked for, which streams it may pause, and what stands until it is there.

OrbitFlow section 3.4. A plan is made anew when the batch changes and when it expires. The
controller counts steps and reads no clock: ranks that are told the same decide the same.

A stream that pauses is tried again when the batch has changed: others have come or gone, and it may
fit. So that a large stream is not passed over for ever, one that has paused for `longest_pause`
steps is the last to be paused again.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.placement.chosen_pauses import MachineFor
from tokenflow_sgl.placement.compiled import Kernels
from tokenflow_sgl.placement.instance import NEW, Installed
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.placement.machine import Machine, fits
from tokenflow_sgl.placement.plan_terms import Batch, PlacementTerms, blocks_after
from tokenflow_sgl.placement.planner import PAUSED, PlacementPlan, plan


class Trigger(enum.Enum):
    """Why a new plan is asked for."""

    BATCH = "batch"
    """A stream has come or gone."""
    EXPIRY = "expiry"
    """The plan does not fit any more, or another one is better."""


@dataclass(frozen=True, slots=True)
class Settings:
    """When the controller asks for a new placement.

    Attributes:
        shortest: Steps that a plan stands at least unless the batch changes (Delta_min in OrbitFlow
            3.3.1), >= 1.
        longest_pause: Steps after which a stream is the last one to be paused, >= 1.

    Raises:
        ValueError: A value is outside its range.
    """

    shortest: int = 1
    longest_pause: int = 1024

    def __post_init__(self) -> None:
        for name in ("shortest", "longest_pause"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; allowed is 1 or more")


@dataclass(frozen=True, slots=True, eq=False)
class CurrentPlan:
    """The plan that the executor follows.

    Attributes:
        plan: It.
        slots: Which stream each of its places is.
        made: Step at which it was made.
        paused_at: Slot to the step from which on that stream pauses.
    """

    plan: PlacementPlan
    slots: tuple[int, ...]
    made: int
    paused_at: dict[int, int] = field(default_factory=dict)

    def installed(self, slots: Sequence[int]) -> Installed:
        """What the migration of a new batch begins from, in the order of these slots."""
        today = self.plan.installed()
        choice = dict(zip(self.slots, today.layout, strict=True))
        return replace(today, layout=np.array([choice.get(slot, NEW) for slot in slots]))


def trigger(
    force: CurrentPlan | None,
    slots: Sequence[int],
    step: int,
    settings: Settings,
) -> Trigger | None:
    """Whether a new plan is to be asked for, and why; None: the one in force stands.

    Args:
        force: The plan in force; None: there is none.
        slots: The streams of the batch, those that pause included.
        step: Decode steps so far.
        settings: When the controller asks.
    """
    if force is None or set(force.slots) != set(slots):
        return Trigger.BATCH
    age = step - force.made
    if age < settings.shortest:
        return None
    return Trigger.EXPIRY if age >= force.plan.lasts else None


def next_plan(
    force: CurrentPlan | None,
    slots: Sequence[int],
    batch: Batch,
    machine: Machine | MachineFor,
    why: Trigger,
    step: int,
    settings: Settings,
    terms: PlacementTerms,
    kernels: Kernels | None = None,
    layouts: Layouts | None = None,
) -> CurrentPlan:
    """The plan that takes the place of the one in force.

    Args:
        force: The plan in force; None: there is none.
        slots: Which streams the batch has, those that pause included.
        batch: They, in the same order.
        machine: As of `plan`.
        why: What asked for it.
        step: Decode steps so far.
        settings: When the controller asks.
        terms: What else decides.
        kernels: The inner loops; None: not compiled.
        layouts: The choices; None: as of `plan`.
    """
    since = {} if force is None else force.paused_at
    pause = np.array([step - since.get(slot, step) for slot in slots])
    tried = np.ones(len(slots), dtype=np.bool_)
    if why is not Trigger.BATCH:  # nothing has become free for streams that pause
        waits = np.array([slot in since for slot in slots])
        tried = np.logical_not(waits & (pause < settings.longest_pause))
        if not tried.any():
            tried[:] = True
    places = np.flatnonzero(tried)
    chosen = [slots[place] for place in places]
    found = plan(
        batch.only(places),
        machine if isinstance(machine, Machine) else lambda runs: machine(places[runs]),
        terms,
        layouts=layouts,
        installed=None if force is None else force.installed(chosen),
        last=pause[places] >= settings.longest_pause,
        kernels=kernels,
    )
    reasons = {} if force is None else {force.slots[at]: of for at, of in force.plan.paused}
    paused = [(int(at), reasons[slots[at]]) for at in np.flatnonzero(np.logical_not(tried))]
    paused += [(int(places[at]), of) for at, of in found.paused]
    layout = np.full(len(slots), PAUSED)
    layout[places] = found.layout
    whole = replace(
        found,
        layout=layout,
        sizes=blocks_after(batch.tokens, terms.ahead, terms.block),
        paused=tuple(paused),
    )
    paused_at = {slots[at]: since.get(slots[at], step) for at, _ in paused}
    return CurrentPlan(whole, tuple(slots), step, paused_at)


def stopgap(made: PlacementPlan, tokens: IntArray, machine: Machine, block: int) -> tuple[int, ...]:
    """Streams to pause so that a plan whose successor is late still fits: largest KV first.

    OrbitFlow's Fig. 3 B is why: at step 16 it needs 78 of 70 blocks.

    Args:
        made: The plan in force.
        tokens: KV tokens of each stream now, of shape (streams,).
        machine: Link and memory.
        block: Tokens of a block.

    Returns:
        Places in the batch; empty: it fits.
    """
    sizes = blocks_after(tokens, 0, block)
    runs = np.flatnonzero(made.layout != PAUSED)
    paused: list[int] = []
    while runs.size and not fits(sizes[runs], made.layout[runs], made.layouts, machine):
        largest = int(runs[np.argmax(tokens[runs])])
        paused.append(largest)
        runs = runs[runs != largest]
    return tuple(paused)
