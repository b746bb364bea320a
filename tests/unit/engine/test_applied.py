"""Events in SGLang's spans."""

from __future__ import annotations

from types import SimpleNamespace

from sglang.srt.observability.trace import TraceNullContext, TraceReqContext

from tokenflow_sgl.engine.telemetry.applied import trace


def test_an_event_goes_to_the_span_that_the_request_is_in() -> None:
    # SGLang's own context, without the OpenTelemetry SDK that would make its spans.
    context = object.__new__(TraceReqContext)
    context.tracing_enable, context.trace_level = True, 1
    context.thread_context, context.events_cache = SimpleNamespace(), []
    request = SimpleNamespace(time_stats=SimpleNamespace(trace_ctx=context))
    trace(request, "paused", cause="exchange")
    trace(request, "resumed", recomputed=1, loaded=200)
    context.tracing_enable = False
    trace(request, "paused", cause="memory")
    seen = [(event.event_name, event.attrs) for event in context.events_cache]
    assert seen == [
        ("tokenflow.paused", {"cause": "exchange"}),
        ("tokenflow.resumed", {"recomputed": 1, "loaded": 200}),
    ]
    assert all(event.ts > 0 for event in context.events_cache)


def test_without_tracing_nothing_happens() -> None:
    trace(SimpleNamespace(time_stats=SimpleNamespace(trace_ctx=TraceNullContext())), "paused")
