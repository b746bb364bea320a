"""What steps, recomputes and copies cost in seconds, and how that is learned while serving."""

from tokenflow_sgl.costs.model import SHARED_STEP, StepCosts, attention_work, prefix_of
from tokenflow_sgl.costs.online import OnlineCosts
from tokenflow_sgl.costs.steps import StepTimer, Work
from tokenflow_sgl.costs.transfers import LatestRate, Links, MeasuredLink, TransferRate

__all__ = [
    "SHARED_STEP",
    "LatestRate",
    "Links",
    "MeasuredLink",
    "OnlineCosts",
    "StepCosts",
    "StepTimer",
    "TransferRate",
    "Work",
    "attention_work",
    "prefix_of",
]
