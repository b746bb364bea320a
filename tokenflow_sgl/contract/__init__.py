"""What every policy reads and answers: `State` in, `Decision` out.

The ground floor of the package: it imports nothing of ours but the types of `costs`. Policies, both
bodies (the live engine and the simulator) and the lifecycle between them speak these words.
"""

from tokenflow_sgl.contract.actions import (
    Cause,
    Preempt,
    Prefill,
    Restore,
    Way,
    When,
    Write,
)
from tokenflow_sgl.contract.beginnings import Beginnings
from tokenflow_sgl.contract.decision import Decision, Mode
from tokenflow_sgl.contract.lengths import (
    FloatArray,
    IntArray,
    LengthCurves,
    LengthPredictor,
    Lengths,
    Traits,
)
from tokenflow_sgl.contract.memory import Memory, Pool, Tier, Window
from tokenflow_sgl.contract.policy import CalmPolicy, Policy
from tokenflow_sgl.contract.reserve import Growth
from tokenflow_sgl.contract.standing import BoolArray, Phase, Standing
from tokenflow_sgl.contract.state import ModelShape, State
from tokenflow_sgl.contract.streams import Streams

__all__ = [
    "Beginnings",
    "BoolArray",
    "CalmPolicy",
    "Cause",
    "Decision",
    "FloatArray",
    "Growth",
    "IntArray",
    "LengthCurves",
    "LengthPredictor",
    "Lengths",
    "Memory",
    "Mode",
    "ModelShape",
    "Phase",
    "Policy",
    "Pool",
    "Preempt",
    "Prefill",
    "Restore",
    "Standing",
    "State",
    "Streams",
    "Tier",
    "Traits",
    "Way",
    "When",
    "Window",
    "Write",
]
