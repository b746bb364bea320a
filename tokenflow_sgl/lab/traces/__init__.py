"""Traces: lists of requests, from files and from generators.

`open_trace` makes a `Trace` of a string; loaders and generators make them one by one, `transform`
makes traces of traces, `summarise` describes them. Needs numpy only; pictures need matplotlib.
"""

from __future__ import annotations

from tokenflow_sgl.lab.traces.generators.generate import TraceConfig, make_trace
from tokenflow_sgl.lab.traces.loaders import load_native, write_native
from tokenflow_sgl.lab.traces.request import (
    Accounting,
    PrefixBlock,
    PriorityUpdate,
    Trace,
    TraceError,
    TraceRequest,
)
from tokenflow_sgl.lab.traces.spec import open_trace
from tokenflow_sgl.lab.traces.stats import TraceStats, summarise
from tokenflow_sgl.lab.traces.workloads import WORKLOADS, Workload

__all__ = [
    "WORKLOADS",
    "Accounting",
    "PrefixBlock",
    "PriorityUpdate",
    "Trace",
    "TraceConfig",
    "TraceError",
    "TraceRequest",
    "TraceStats",
    "Workload",
    "load_native",
    "make_trace",
    "open_trace",
    "summarise",
    "write_native",
]
