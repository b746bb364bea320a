"""An engine that executes placements of KV layer by layer and pauses streams, played step by step.

For OrbitFlow's evaluation. `step_loop` serves requests in one batch and plays each decode step by
the planner's fluid model, `placers` has the systems that decide where KV lies, and
`objectives_met` what came of it, with and without token deposit.
"""

from tokenflow_sgl.lab.sim.layer_wise.objectives_met import Attained, attained
from tokenflow_sgl.lab.sim.layer_wise.placers import (
    AtChanges,
    DeepSpeed,
    EachStep,
    OrbitFlow,
    Placed,
    Placer,
    Static,
    View,
)
from tokenflow_sgl.lab.sim.layer_wise.step_loop import (
    Admission,
    Limits,
    Newcomer,
    Served,
    serve_batch,
)

__all__ = [
    "Admission",
    "AtChanges",
    "Attained",
    "DeepSpeed",
    "EachStep",
    "Limits",
    "Newcomer",
    "OrbitFlow",
    "Placed",
    "Placer",
    "Served",
    "Static",
    "View",
    "attained",
    "serve_batch",
]
