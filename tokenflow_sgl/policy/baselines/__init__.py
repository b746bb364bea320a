"""Policies to compare with."""

from tokenflow_sgl.policy.baselines.andes import AndesPolicy
from tokenflow_sgl.policy.baselines.least_slack import LeastSlackPolicy
from tokenflow_sgl.policy.baselines.ordered import OrderedPolicy
from tokenflow_sgl.policy.baselines.paper import PaperConfig, PaperPolicy
from tokenflow_sgl.policy.baselines.priorities import (
    FixedPriorityPolicy,
    MarkovPriorityPolicy,
    RandomPriorityPolicy,
)
from tokenflow_sgl.policy.baselines.round_robin import RoundRobinPolicy
from tokenflow_sgl.policy.baselines.stock import StockPolicy

__all__ = [
    "AndesPolicy",
    "FixedPriorityPolicy",
    "LeastSlackPolicy",
    "MarkovPriorityPolicy",
    "OrderedPolicy",
    "PaperConfig",
    "PaperPolicy",
    "RandomPriorityPolicy",
    "RoundRobinPolicy",
    "StockPolicy",
]
