"""Finds the policy that the configuration names."""

from __future__ import annotations

from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.policy import ConfigError, Policy, WorkingSetPolicy
from tokenflow_sgl.policy.baselines import PaperPolicy, StockPolicy
from tokenflow_sgl.policy.loading import load_class


def load_policy(config: TokenFlowConfig) -> Policy:
    """The policy object; raises `ConfigError` for a name that leads nowhere.

    A name with a colon is `package.module:Class`; the class is called without arguments.
    """
    name = config.policy
    if name == "working-set":
        return WorkingSetPolicy(config.working_set)
    if name == "paper":
        return PaperPolicy()
    if name == "stock":
        return StockPolicy()
    if ":" not in name:
        raise ConfigError(
            f"policy is {name!r}; allowed is working-set, paper, stock or package.module:Class"
        )
    return load_class(name)
