"""Who runs: pure policies, `decide(State) -> Decision`, shared by every body."""

from tokenflow_sgl.policy.config import ConfigError, WorkingSetConfig
from tokenflow_sgl.policy.decision import Cause, Decision, Mode, Policy, Preemption
from tokenflow_sgl.policy.lengths import OutputLengths
from tokenflow_sgl.policy.state import Memory, Phase, Recollection, State, Streams
from tokenflow_sgl.policy.working_set import WorkingSetPolicy

__all__ = [
    "Cause",
    "ConfigError",
    "Decision",
    "Memory",
    "Mode",
    "OutputLengths",
    "Phase",
    "Policy",
    "Preemption",
    "Recollection",
    "State",
    "Streams",
    "WorkingSetConfig",
    "WorkingSetPolicy",
]
