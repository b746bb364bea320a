"""What the scheduler reports about itself, as one table."""

from tokenflow_sgl.metrics.contract import GROUPS, METRICS, PREFIX, Metric

__all__ = ["GROUPS", "METRICS", "PREFIX", "Metric"]
