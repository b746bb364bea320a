"""The policies by name: one registry for the live engine and the simulator."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from tokenflow_sgl.contract import Policy
from tokenflow_sgl.policy.baselines import (
    AndesPolicy,
    LeastSlackPolicy,
    PaperPolicy,
    RoundRobinPolicy,
    StockPolicy,
)
from tokenflow_sgl.policy.config import ConfigError, WorkingSetConfig
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
    if ":" not in name:
        raise ConfigError(
            f"policy is {name!r}; allowed is {', '.join(POLICY_NAMES)} or package.module:Class"
        )
    return load_class(name)


def load_class(name: str) -> Policy:
    """The policy that `package.module:Class` makes without arguments.

    Raises:
        ConfigError: The name leads nowhere, or to something that does not decide.
    """
    module, _, attribute = name.partition(":")
    try:
        policy: Policy = getattr(importlib.import_module(module), attribute)()
    except Exception as error:  # the module and its class run code of their own
        raise ConfigError(f"policy {name!r} cannot be loaded: {error}") from error
    if not callable(getattr(policy, "decide", None)):
        raise ConfigError(f"policy {name!r} cannot be loaded: it has no method decide")
    return policy
