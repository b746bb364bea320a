"""The policies that a simulation can run, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenflow_sgl.policy import Policy, WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.baselines import (
    AndesPolicy,
    LeastSlackPolicy,
    OrderedPolicy,
    PaperConfig,
    PaperPolicy,
    RoundRobinPolicy,
)

STOCK = "stock"
"""SGLang's own scheduler, which no policy of ours has a say in."""

_ORDERED: Mapping[str, Callable[[], OrderedPolicy]] = {
    "andes": AndesPolicy,
    "least-slack": LeastSlackPolicy,
    "round-robin": RoundRobinPolicy,
}

POLICIES = (STOCK, "tokenflow", "paper", *_ORDERED)
"""All names."""


def make_policy(name: str, config: WorkingSetConfig) -> tuple[Policy, float]:
    """The policy of that name, and the seconds between two of its plans.

    config: Parameters of tokenflow's; the others run with their defaults.
    """
    if name == "paper":
        return PaperPolicy(), PaperConfig().interval
    if name in _ORDERED:
        ordered = _ORDERED[name]()
        return ordered, ordered.interval
    return WorkingSetPolicy(config), config.cycle
