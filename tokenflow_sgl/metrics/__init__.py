"""Every metric of the scheduler: the one place that declares them.

The engine makes its Prometheus objects from this table, and docs/metrics.md is generated from it.
Dashboards, rules and the live view name only metrics that are in it.
"""

from __future__ import annotations

from tokenflow_sgl.metrics.declared_metric import Metric
from tokenflow_sgl.metrics.kv_metrics import LAYERS, LINK, RESTORATION, SWITCHES
from tokenflow_sgl.metrics.reader_metrics import LONGER, READERS, STREAMS, TENANTS
from tokenflow_sgl.metrics.scheduling_metrics import SCHEDULING

__all__ = ["GROUPS", "LONGER", "METRICS", "Metric"]

GROUPS: dict[str, tuple[Metric, ...]] = {
    "Streams": STREAMS,
    "Readers": READERS,
    "Tenants": TENANTS,
    "Scheduling": SCHEDULING,
    "Context switches": SWITCHES,
    "Link to host memory": LINK,
    "Restoration from storage": RESTORATION,
    "KV layer by layer": LAYERS,
}
METRICS: dict[str, Metric] = {metric.name: metric for group in GROUPS.values() for metric in group}
"""By name without the prefix."""
