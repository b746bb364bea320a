"""How many output tokens clients allow: what a server knows of an answer's length beforehand."""

from __future__ import annotations

from collections.abc import Sequence

from tokenflow_sgl.lab.traces.request import TraceRequest

DEFAULT_LIMIT = 4096
"""Output tokens that clients allow where the trace does not say; doubled until all answers fit."""
REASONING_LIMIT = 32_768
"""The same for traffic in which answers begin with thinking."""
WARM_UP_LIMIT = 32
"""Output tokens that the requests of a replay's warm-up burst allow."""


def _usual_limit(requests: Sequence[TraceRequest]) -> int:
    """One limit for all requests that state none: two of them would tell the lengths apart."""
    thinks = any(request.reasoning_tokens for request in requests)
    limit = REASONING_LIMIT if thinks else DEFAULT_LIMIT
    longest = max((request.output_tokens for request in requests), default=1)
    while limit < longest:
        limit *= 2
    return limit


def client_limits(
    requests: Sequence[TraceRequest],
    *,
    known_lengths: bool = False,
    room: Sequence[int] | None = None,
) -> list[int]:
    """Output tokens that each request's client allows, never below its answer's length.

    Args:
        requests: Of a trace.
        known_lengths: Every client allows exactly what it gets, as benchmarks do that end answers
            by their limit: then the server knows each answer's length.
        room: Most output tokens that the server can serve for each request; limits are cut to it,
            as SGLang does.
    """
    if known_lengths:
        return [request.output_tokens for request in requests]
    usual = _usual_limit(requests)
    limits = [request.limit_tokens or usual for request in requests]
    if room is not None:
        limits = [min(limit, most) for limit, most in zip(limits, room, strict=True)]
    return [
        max(limit, request.output_tokens) for limit, request in zip(limits, requests, strict=True)
    ]
