"""Sends the readers of a burst and notes when every token arrives.

In go requests with their send times; out come records of token ids and arrival times, all on one
monotonic clock whose zero is the start of the burst. All times are in seconds. The streams are
read by the replay's client (`replay.stream_client`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tokenflow_sgl.choices import Api
from tokenflow_sgl.replay.endpoints import ENDPOINTS, Ask
from tokenflow_sgl.replay.prompts import token_prompt
from tokenflow_sgl.replay.stream import Stream
from tokenflow_sgl.replay.stream_client import StreamClient

_WATCH_EVERY_S = 0.1
_GENERATE = ENDPOINTS[Api.generate]


@dataclass(frozen=True)
class StreamRequest:
    """One reader: what to generate, when to ask for it, and how fast it is read."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    rate: float
    """Tokens per second that the reader consumes."""
    send_at_s: float = 0.0
    """When the request is sent, after the start of the burst."""

    def body(self) -> bytes:
        """Return the JSON body for ``/generate``: greedy, streamed, with the reader's rate."""
        return _GENERATE.body(
            token_prompt(self.prompt_ids), Ask(self.max_new_tokens, rate=self.rate, keep=True)
        )


@dataclass
class StreamRecord:
    """What the client saw of one request."""

    request: StreamRequest
    sent_s: float = 0.0
    """When the request was really sent."""
    token_times_s: list[float] = field(default_factory=list)
    """Arrival time of every token, in the order of generation."""
    output_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """SGLang's reason (``length``, ``stop``, ``abort``); None when the stream broke off."""
    error: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the stream came to its proper end."""
        return self.error is None and self.finish_reason in ("length", "stop")

    @property
    def ttft_s(self) -> float:
        """Seconds from sending to the first token."""
        return self.token_times_s[0] - self.sent_s


async def run_burst(
    url: str,
    requests: Sequence[StreamRequest],
    *,
    on_tokens: Callable[[int], None] = lambda _: None,
    timeout_s: float = 300.0,
) -> list[StreamRecord]:
    """Send all requests at their times and return their records, in the same order.

    A request that fails becomes a record with ``error`` set; the others go on.

    Args:
        url: Base URL of the server.
        requests: The readers; their order does not matter.
        on_tokens: Called ten times per second with the number of tokens that have come since.
        timeout_s: Seconds after which a stream that brings nothing is given up.

    Raises:
        ReplayError: Nobody answers at ``url``.
    """
    client = StreamClient(url)
    await client.open()
    watch = asyncio.create_task(_watch(client, on_tokens, timeout_s))
    zero = time.monotonic()
    try:
        records = await asyncio.gather(*(_stream(client, request, zero) for request in requests))
    finally:
        watch.cancel()
        # It still counts what came since it last looked.
        await asyncio.gather(watch, return_exceptions=True)
        await client.close()
    return list(records)


async def _watch(client: StreamClient, on_tokens: Callable[[int], None], timeout_s: float) -> None:
    seen = 0
    try:
        while True:
            await asyncio.sleep(_WATCH_EVERY_S)
            client.give_up_silent(timeout_s)
            on_tokens(client.tokens - seen)
            seen = client.tokens
    finally:
        on_tokens(client.tokens - seen)


async def _stream(client: StreamClient, request: StreamRequest, zero: float) -> StreamRecord:
    body = request.body()
    ended: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
    # An event loop may wake up early, by as much as its clock cannot tell.
    while (left := zero + request.send_at_s - time.monotonic()) > 0.0:
        await asyncio.sleep(left)
    answer = _GENERATE.answer(keep=True)
    stream = client.send(_GENERATE.path, body, answer, rate=request.rate, on_end=ended.set_result)
    await ended
    return StreamRecord(
        request,
        sent_s=stream.sent - zero,
        token_times_s=[time_s - zero for time_s in stream.times],
        output_ids=answer.ids,
        finish_reason=answer.finish_reason,
        error=stream.error,
    )
