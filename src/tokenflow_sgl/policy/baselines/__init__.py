"""Policies to compare with."""

from tokenflow_sgl.policy.baselines.paper import PaperConfig, PaperPolicy
from tokenflow_sgl.policy.baselines.stock import StockPolicy

__all__ = ["PaperConfig", "PaperPolicy", "StockPolicy"]
