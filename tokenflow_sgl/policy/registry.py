"""The policies by name: one registry for the live engine and the simulator."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from tokenflow_sgl.contract import Policy
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.named_class import load_class
from tokenflow_sgl.policy.working_set import WorkingSetPolicy

_WORKING_SET = "working-set"
_BASELINES = {
    "paper": "PaperPolicy",
    "andes": "AndesPolicy",
    "least-slack": "LeastSlackPolicy",
    "round-robin": "RoundRobinPolicy",
    "stock": "StockPolicy",
}
"""Classes of `policy.baselines`, which a server with a policy of ours does not import."""

POLICY_NAMES = (_WORKING_SET, *_BASELINES)
"""Names that `make_policy` knows, beside package.module:Class."""


def make_policy(name: str, config: WorkingSetConfig) -> Policy:
    """The policy of a name.

    Args:
        name: One of `POLICY_NAMES`, or package.module:Class; the class is called without arguments.
        config: Parameters of `working-set`; the others have their own.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not decide.
    """
    if name == _WORKING_SET:
        return WorkingSetPolicy(config)
    if name in _BASELINES:
        baselines = importlib.import_module("tokenflow_sgl.policy.baselines")
        make: Callable[[], Policy] = getattr(baselines, _BASELINES[name])
        return make()
    policy: Policy = load_class(name, "policy", POLICY_NAMES, ("decide",))
    return policy
