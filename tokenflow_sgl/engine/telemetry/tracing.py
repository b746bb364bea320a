"""Events in SGLang's OpenTelemetry spans: a request's pauses, loads and resumes."""

from __future__ import annotations

from typing import Any

LEVEL = 1
"""SGLang's trace level from which on they are recorded: that of its own main stages."""


def trace(req: Any, event: str, **attributes: str | int) -> None:
    """Add an event to the span that a request is in; nothing where tracing is off."""
    req.time_stats.trace_ctx.trace_event(f"tokenflow.{event}", LEVEL, attrs=attributes)
