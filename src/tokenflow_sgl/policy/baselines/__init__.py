"""Policies to compare with."""

from tokenflow_sgl.policy.baselines.stock import StockPolicy

__all__ = ["StockPolicy"]
