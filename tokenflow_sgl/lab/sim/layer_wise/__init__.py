"""An engine that executes placements of KV layer by layer and pauses streams, played step by step.

For OrbitFlow's evaluation. `step_loop` serves requests in one batch and plays each decode step by
the planner's fluid model, `placers` has the systems that decide where KV lies, and
`objectives_met` what came of it, with and without token deposit.
"""

from tokenflow_sgl.lab.sim.layer_wise.objectives_met import Attained, attained
from tokenflow_sgl.lab.sim.layer_wise.placers import (
    AtChanges,
    BatchView,
    DeepSpeed,
    EachStep,
    OrbitFlow,
    Placed,
    Placer,
    Static,
)
from tokenflow_sgl.lab.sim.layer_wise.step_loop import (
    Admission,
    BatchNewcomer,
    Limits,
    Served,
    serve_batch,
)

__all__ = [
    "Admission",
    "AtChanges",
    "Attained",
    "BatchNewcomer",
    "BatchView",
    "DeepSpeed",
    "EachStep",
    "Limits",
    "OrbitFlow",
    "Placed",
    "Placer",
    "Served",
    "Static",
    "attained",
    "serve_batch",
]
