"""What steps, recomputes and copies cost in seconds, and how that is learned while serving."""

from tokenflow_sgl.costs.model import StepCosts, attention_work, prefix_of
from tokenflow_sgl.costs.online import OnlineCosts
from tokenflow_sgl.costs.steps import StepTimer, Work
from tokenflow_sgl.costs.transfers import LatestRate, Link, Links, TransferRate

__all__ = [
    "LatestRate",
    "Link",
    "Links",
    "OnlineCosts",
    "StepCosts",
    "StepTimer",
    "TransferRate",
    "Work",
    "attention_work",
    "prefix_of",
]
