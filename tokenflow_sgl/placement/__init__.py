"""Which layers' KV lies on the device, stream by stream, for the shortest decode step. Pure plans.

After OrbitFlow (PVLDB 19(1)). `layouts` has the choices of a stream, `machine` what a plan is made
for, and `step_latency` plays a decode step. `solver` finds the placement with the shortest step,
`milp` does so by scipy, and `planner` adds which streams pause and how long the plan lasts.
`controller` says when to plan anew.
"""

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.placement.compiled import Kernels, kernels_of
from tokenflow_sgl.placement.instance import NEW, Installed
from tokenflow_sgl.placement.layouts import (
    Layout,
    Layouts,
    any_number,
    every,
    every_kth,
    for_batch,
    half_phases,
)
from tokenflow_sgl.placement.machine import (
    Machine,
    Sharing,
    fits,
    needed_blocks,
    resident_blocks,
    staging_blocks,
)
from tokenflow_sgl.placement.plan_terms import (
    Batch,
    PauseReason,
    PlacementTerms,
    allowed_seconds,
    blocks_after,
)
from tokenflow_sgl.placement.planner import PAUSED, PlacementPlan, plan
from tokenflow_sgl.placement.solver import Placement, SearchEffort, lower_bound, solve, step_seconds
from tokenflow_sgl.placement.step_latency import LayerMove, Piece, Timeline, decode_step

__all__ = [
    "NEW",
    "PAUSED",
    "Batch",
    "Installed",
    "Kernels",
    "LayerMove",
    "Layout",
    "Layouts",
    "Machine",
    "PauseReason",
    "Piece",
    "Placement",
    "PlacementPlan",
    "PlacementTerms",
    "SearchEffort",
    "Sharing",
    "Staging",
    "Timeline",
    "allowed_seconds",
    "any_number",
    "blocks_after",
    "decode_step",
    "every",
    "every_kth",
    "fits",
    "for_batch",
    "half_phases",
    "kernels_of",
    "lower_bound",
    "needed_blocks",
    "plan",
    "resident_blocks",
    "solve",
    "staging_blocks",
    "step_seconds",
]
