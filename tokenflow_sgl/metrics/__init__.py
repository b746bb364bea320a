"""What the scheduler reports about itself, as one table."""

from tokenflow_sgl.metrics.contract import GROUPS, LONGER, METRICS, PREFIX, Metric

__all__ = ["GROUPS", "LONGER", "METRICS", "PREFIX", "Metric"]
