"""What every policy reads and answers: `State` in, `Decision` out.

The ground floor of the package: it imports nothing of ours but the types of `costs`. Policies, both
bodies (the live engine and the simulator) and the lifecycle between them speak these words.
"""

from tokenflow_sgl.contract.actions import (
    Cause,
    Place,
    Preempt,
    Prefill,
    Restore,
    Way,
    When,
    Write,
)
from tokenflow_sgl.contract.decision import Decision, Mode
from tokenflow_sgl.contract.lengths import (
    FloatArray,
    IntArray,
    LengthCurves,
    LengthPredictor,
    Lengths,
    Traits,
)
from tokenflow_sgl.contract.memory import Memory, Pool, Tier
from tokenflow_sgl.contract.policy import Policy
from tokenflow_sgl.contract.state import ModelShape, State
from tokenflow_sgl.contract.streams import BoolArray, Phase, Streams

__all__ = [
    "BoolArray",
    "Cause",
    "Decision",
    "FloatArray",
    "IntArray",
    "LengthCurves",
    "LengthPredictor",
    "Lengths",
    "Memory",
    "Mode",
    "ModelShape",
    "Phase",
    "Place",
    "Policy",
    "Pool",
    "Preempt",
    "Prefill",
    "Restore",
    "State",
    "Streams",
    "Tier",
    "Traits",
    "Way",
    "When",
    "Write",
]
