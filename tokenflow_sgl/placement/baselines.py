"""How other systems place KV: the baselines of OrbitFlow's evaluation (section 5.1).

The paper has no code of them. What it says is taken at its word, with this planner's choices and
latency model, so that only the decision differs. All but the last give all streams the same layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.placement.compiled import Kernels
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.placement.machine import Machine, fits
from tokenflow_sgl.placement.solver import step_seconds

Baseline = Callable[[FloatArray, Layouts, Machine, Kernels | None], IntArray | None]
"""(Sizes, choices, machine, kernels) -> choice of each stream, or None: none that it looks at
fits. Arguments as of `solver.solve`."""


def deepspeed_seconds(sizes: FloatArray, machine: Machine) -> float:
    """A decode step of DeepSpeed-Inference: all layers offloaded, the next one copied meanwhile.

    It has two buffers of a whole layer each, so that it is no layout of this planner: a copy need
    not wait for the layer before.
    """
    copy = float(sizes.sum()) / machine.bandwidth
    between = np.maximum(machine.compute[:-1], copy)
    return copy + float(between.sum()) + float(machine.compute[-1])


def flexgen(
    batches: Sequence[tuple[FloatArray, Machine]], layouts: Layouts, kernels: Kernels | None = None
) -> int | None:
    """FlexGen: one layout for all batches, profiled before; None: none fits them all.

    Args:
        batches: All that will come, each with its sizes and machine.
        layouts: The choices.
        kernels: The inner loops; None: not compiled.
    """
    best: tuple[float, int] | None = None
    for choice in range(len(layouts)):
        seconds = 0.0
        for sizes, machine in batches:
            layout = np.full(sizes.size, choice)
            if not fits(sizes, layout, layouts, machine):
                break
            seconds += step_seconds(sizes, layout, layouts, machine, kernels)
        else:
            if best is None or seconds < best[0]:
                best = seconds, choice
    return None if best is None else best[1]


def flexgen_plus(
    sizes: FloatArray, layouts: Layouts, machine: Machine, kernels: Kernels | None = None
) -> IntArray | None:
    """FlexGen+: the layout that is best for this batch, chosen anew when the batch changes."""
    found = _uniform(sizes, layouts, machine, kernels)
    return min(found, key=lambda one: one[0])[1] if found else None


def slo_aware(tbt_slo: float) -> Baseline:
    """SLO-aware Offloading: as much on the host as the objective allows; else as FlexGen+.

    Args:
        tbt_slo: Seconds of a decode step.
    """

    def place(
        sizes: FloatArray, layouts: Layouts, machine: Machine, kernels: Kernels | None = None
    ) -> IntArray | None:
        found = _uniform(sizes, layouts, machine, kernels)
        within = [layout for seconds, layout in found if seconds <= tbt_slo]
        if within:
            return max(within, key=lambda layout: len(layouts.choices[layout[0]]))
        return flexgen_plus(sizes, layouts, machine, kernels)

    return place


def dynamic_heuristic(
    sizes: FloatArray, layouts: Layouts, machine: Machine, kernels: Kernels | None = None
) -> IntArray | None:
    """Dynamic Heuristic: few layers on the host, those of the largest streams first.

    One stream after the other offloads more until all fits, so that few copies free the memory. It
    looks at memory alone, never at the link.
    """
    layout = np.zeros(sizes.size, dtype=np.int64)
    for stream in np.argsort(-sizes, kind="stable"):
        for choice in range(len(layouts)):
            layout[stream] = choice
            if fits(sizes, layout, layouts, machine):
                return layout
    return None


def _uniform(
    sizes: FloatArray, layouts: Layouts, machine: Machine, kernels: Kernels | None
) -> list[tuple[float, IntArray]]:
    """Seconds and placement of each layout that fits when all streams have it."""
    found = []
    for choice in range(len(layouts)):
        layout = np.full(sizes.size, choice)
        if fits(sizes, layout, layouts, machine):
            found.append((step_seconds(sizes, layout, layouts, machine, kernels), layout))
    return found
