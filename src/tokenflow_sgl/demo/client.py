"""A streaming HTTP client that notes when every token arrives.

In go requests with their send times; out come records of token ids and arrival times, all on one
monotonic clock whose zero is the start of the burst. All times are in seconds.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass(frozen=True)
class StreamRequest:
    """One reader: what to generate, when to ask for it, and how fast it is read."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    rate: float
    """Tokens per second that the reader consumes."""
    send_at_s: float = 0.0
    """When the request is sent, after the start of the burst."""

    def payload(self) -> dict[str, Any]:
        """Return the JSON body for ``/generate``: greedy, streamed, with the reader's rate."""
        sampling = {
            "temperature": 0.0,
            "max_new_tokens": self.max_new_tokens,
            "custom_params": {"tokenflow_rate": self.rate},
        }
        return {"input_ids": list(self.prompt_ids), "sampling_params": sampling, "stream": True}


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

    def add_chunk(self, chunk: dict[str, Any], now_s: float) -> int:
        """Take one chunk that arrived at ``now_s``; return the number of tokens that it brought.

        SGLang sends either all output ids so far or, with ``--incremental-streaming-output``, only
        the new ones; ``meta_info`` tells how many of them, at the end of the list, are new.
        """
        if "error" in chunk:
            self.error = str(chunk["error"])
            return 0
        meta = chunk["meta_info"]
        new = int(meta["completion_tokens"]) - len(self.output_ids)
        if new > 0:
            self.output_ids.extend(chunk["output_ids"][-new:])
            self.token_times_s.extend([now_s] * new)
        if meta.get("finish_reason") is not None:
            self.finish_reason = str(meta["finish_reason"]["type"])
        return max(new, 0)


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
        on_tokens: Called with the number of tokens of each chunk that arrives.
        timeout_s: Seconds after which a stream that has not ended is given up.
    """
    # No limit on connections: every reader has its own, as real clients do.
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        zero = time.monotonic()
        return list(
            await asyncio.gather(
                *(_stream(session, url, request, zero, on_tokens) for request in requests)
            )
        )


async def _stream(
    session: aiohttp.ClientSession,
    url: str,
    request: StreamRequest,
    zero: float,
    on_tokens: Callable[[int], None],
) -> StreamRecord:
    record = StreamRecord(request)
    payload = request.payload()
    await asyncio.sleep(max(0.0, zero + request.send_at_s - time.monotonic()))
    record.sent_s = time.monotonic() - zero
    try:
        async with session.post(f"{url}/generate", json=payload) as response:
            if response.status != 200:
                record.error = f"HTTP {response.status}: {(await response.text())[:500]}"
                return record
            async for line in response.content:
                if not line.startswith(b"data: {"):  # blank lines between events, and [DONE]
                    continue
                now_s = time.monotonic() - zero
                on_tokens(record.add_chunk(json.loads(line[6:]), now_s))
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}"
    return record
