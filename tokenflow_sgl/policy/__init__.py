"""Which streams run: pure policies, `decide(State) -> Decision`, shared by every body."""

from tokenflow_sgl.policy.config import ConfigError, WorkingSetConfig
from tokenflow_sgl.policy.predictors import PREDICTORS, make_predictor
from tokenflow_sgl.policy.registry import POLICY_NAMES, make_policy
from tokenflow_sgl.policy.working_set import WorkingSetPolicy

__all__ = [
    "POLICY_NAMES",
    "PREDICTORS",
    "ConfigError",
    "WorkingSetConfig",
    "WorkingSetPolicy",
    "make_policy",
    "make_predictor",
]
