"""The policies by name: one registry for the live engine and the simulator."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenflow_sgl.contract import Policy
from tokenflow_sgl.policy.baselines import (
    AndesPolicy,
    LeastSlackPolicy,
    PaperPolicy,
    RoundRobinPolicy,
    StockPolicy,
)
from tokenflow_sgl.policy.config import WorkingSetConfig
from tokenflow_sgl.policy.named_class import load_class
from tokenflow_sgl.policy.working_set import WorkingSetPolicy

_MAKERS: Mapping[str, Callable[[WorkingSetConfig], Policy]] = {
    "working-set": WorkingSetPolicy,
    "paper": lambda config: PaperPolicy(),
    "andes": lambda config: AndesPolicy(),
    "least-slack": lambda config: LeastSlackPolicy(),
    "round-robin": lambda config: RoundRobinPolicy(),
    "stock": lambda config: StockPolicy(),
}

POLICY_NAMES = tuple(_MAKERS)
"""Names that `make_policy` knows, beside package.module:Class."""


def make_policy(name: str, config: WorkingSetConfig) -> Policy:
    """The policy of a name.

    Args:
        name: One of `POLICY_NAMES`, or package.module:Class; the class is called without arguments.
        config: Parameters of `working-set`; the others have their own.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not decide.
    """
    if name in _MAKERS:
        return _MAKERS[name](config)
    policy: Policy = load_class(name, "policy", POLICY_NAMES, ("decide",))
    return policy
