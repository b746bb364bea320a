"""What was done to streams: counted in the metrics, and told to their requests' traces."""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.lifecycle import Applied
from tokenflow_sgl.lifecycle.table import StreamTable

LEVEL = 1
"""SGLang's trace level from which on our events are recorded: that of its own main stages."""


def trace(req: Req | Any, event: str, **attributes: str | int) -> None:
    """Add an event to the OpenTelemetry span that a request is in; nothing where tracing is off."""
    req.time_stats.trace_ctx.trace_event(f"tokenflow.{event}", LEVEL, attrs=attributes)


def report_applied(applied: Applied, table: StreamTable[Any], recorder: Recorder) -> None:
    """Report preempted streams, what was written of running ones, and the load that has begun."""
    for preemption in applied.preempted:
        recorder.preempted(preemption.cause)
        trace(table.request(preemption.slot), "paused", cause=preemption.cause.value)
    if applied.written:
        recorder.written_ahead(applied.written)
    if applied.loading is not None:
        slot, tokens = applied.loading
        recorder.loaded_ahead(tokens, part=slot in table.phases.parts)
        trace(table.request(slot), "loading", tokens=tokens)


def report_resumed(req: Req, loaded: int, recorder: Recorder) -> None:
    """Report a resume, of which `loaded` tokens came back from the host."""
    recomputed = len(req.full_untruncated_fill_ids) - int(req.prefix_len)
    recorder.resumed(recomputed, loaded, resident=req.prefix_len - loaded)
    trace(req, "resumed", recomputed=recomputed, loaded=loaded)
