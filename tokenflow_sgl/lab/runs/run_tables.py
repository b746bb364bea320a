"""The tables of a run: what the trace asked for beside what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike

from tokenflow_sgl.lab.runs.store import REQUEST_SCHEMA, TOKEN_SCHEMA
from tokenflow_sgl.lab.traces.request import Trace, TraceRequest


def requests_table(requests: Sequence[TraceRequest], measured: Mapping[str, Any]) -> pa.Table:
    """The requests' table; made column by column, for there may be a million requests.

    Args:
        requests: All requests of the trace, in its order.
        measured: The columns of `REQUEST_SCHEMA` that the trace does not state, each of shape
            (requests,); null where nothing was measured.
    """
    asked = {
        "index": np.arange(len(requests)),
        "session": [request.session for request in requests],
        "turn": [request.turn for request in requests],
        "requested_tokens": [request.output_tokens for request in requests],
        "ttft_slo_s": [request.ttft_slo_s for request in requests],
        "tbt_slo_s": [request.tbt_slo_s for request in requests],
        "priority": [request.priority for request in requests],
        "qos_class": [request.qos_class for request in requests],
    }
    return pa.table({**asked, **measured}, REQUEST_SCHEMA)


def tokens_table(owners: ArrayLike, times_s: ArrayLike) -> pa.Table:
    """The table of tokens of a run: which request got one, and when.

    Args:
        owners: Index of each token's request, never decreasing, shape (tokens,).
        times_s: When each token arrived, seconds of the trace's clock, shape (tokens,).
    """
    return pa.table({"request": owners, "time_s": times_s}, TOKEN_SCHEMA)


def trace_info(trace: Trace) -> dict[str, Any]:
    """What `RunInfo.trace` says of a trace."""
    return {
        "name": trace.name,
        "requests": len(trace.requests),
        "accounting": dataclasses.asdict(trace.accounting),
        "notes": list(trace.notes),
    }
