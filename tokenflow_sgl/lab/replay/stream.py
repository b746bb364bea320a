"""One request and its answer: stamps when bytes arrive, and reads them when told to.

Times are `time.monotonic()`. `stream_client` says why stamping and reading are apart.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable
from typing import Protocol, cast

from tokenflow_sgl.lab.replay.answers import Answer, ChunkError
from tokenflow_sgl.lab.replay.http import EventLines, HttpError, HttpResponse

_ERROR_BODY = 500


class StreamOwner(Protocol):
    """Reads what streams bring, in the order of its arrival.

    Attributes:
        tokens: Tokens of all streams so far.
        ttft_s: Wait for the first token of every stream that has one, in the order of arrival.
    """

    tokens: int
    ttft_s: array[float]

    def arrived(self, stream: Stream, when: float, data: bytes | Exception | None) -> None:
        """Queue what arrived for reading, after all that has arrived before it."""

    def forget(self, stream: Stream) -> None:
        """Note that a stream has ended."""


class Stream(asyncio.Protocol):
    """One request and its answer.

    Attributes:
        sent: When the client turned to the server with it; connecting counts as waiting, as it
            does for a reader.
        times: Arrival of every token; tokens that came in one piece have the same time.
        ended: When the answer ended or failed, or when it was cut off; None: it runs.
        cut_off: It was cut off: nothing is known of its end.
        error: Why it failed, in a sentence; None: it did not.
        refused: It failed because no connection could be made.
        last_token: When its last token came; before the first, when it was sent.
        next_due: When its reader runs out of text if no more comes (`qos.reader` has the formula);
            0 before the first visible token.
        answer: What came.
    """

    __slots__ = (
        "_client",
        "_error_body",
        "_events",
        "_on_end",
        "_rate",
        "_response",
        "_transport",
        "_wire",
        "answer",
        "cut_off",
        "ended",
        "error",
        "last_token",
        "next_due",
        "refused",
        "sent",
        "times",
    )

    def __init__(
        self,
        client: StreamOwner,
        wire: bytes,
        answer: Answer,
        rate: float,
        on_end: Callable[[Stream], None],
    ) -> None:
        self.sent = self.last_token = time.monotonic()
        self.times = array("d")
        self.ended: float | None = None
        self.error: str | None = None
        self.cut_off = False
        self.refused = False
        self.next_due = 0.0
        self.answer = answer
        self._client = client
        self._wire = wire
        self._rate = rate
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._response = HttpResponse()
        self._events = EventLines()
        self._error_body = b""

    # ---- called by the event loop: stamp, nothing else ------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)
        if self.ended is not None:  # given up while connecting
            self._disconnect()
            return
        self._transport.write(self._wire)
        self._wire = b""

    def data_received(self, data: bytes) -> None:
        """Stamp what arrived on the connection."""
        self._client.arrived(self, time.monotonic(), data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stamp the end; it is read after what arrived before it."""
        if self.ended is None:
            self._client.arrived(self, time.monotonic(), exc)

    # ---- called later: read ---------------------------------------------------------

    def read(self, arrival: float, data: bytes | Exception | None) -> None:
        """Read what arrived then: bytes, or the connection's end with its error, if any."""
        if self.ended is not None:
            return
        if not isinstance(data, bytes):
            self._read_end(arrival, data)
            return
        try:
            body = self._response.feed(data)
            if self._response.status not in (0, 200):
                self._error_body += body[: _ERROR_BODY - len(self._error_body)]
            else:
                for event in self._events.feed(body):
                    self._bring(arrival, self.answer.take(event))
                    if self.answer.settled:
                        self._settle()
        except (ChunkError, HttpError) as error:
            self.end(arrival, str(error))
            return
        if self._response.complete or self.answer.error is not None:
            self._finish(arrival)

    def end(self, when: float, error: str | None) -> None:
        """End the stream: its connection is closed, and its sender is told."""
        if self.ended is not None:
            return
        self.ended, self.error = when, error
        self._disconnect()
        self._client.forget(self)
        self._on_end(self)

    def cut(self, when: float) -> None:
        """Close the connection without a verdict, and without a report."""
        if self.ended is None:
            self.ended, self.cut_off = when, True
            self._disconnect()
            self._client.forget(self)

    def _bring(self, arrival: float, tokens: int) -> None:
        if not tokens:
            return
        self.last_token = arrival
        if not self.times:
            self._client.ttft_s.append(arrival - self.sent)
        if tokens == 1:
            self.times.append(arrival)
        else:
            self.times.extend([arrival] * tokens)
        if not self.answer.thinking:
            self.next_due = max(self.next_due, arrival) + tokens / self._rate
        self._client.tokens += tokens

    def _settle(self) -> None:
        """Give the latest chunks the tokens that they have, by what the server said after them."""
        counts = self.answer.settled
        stamps = self.times[-len(counts) :]
        del self.times[-len(counts) :]
        for arrival, tokens in zip(stamps, counts, strict=True):
            self.times.extend([arrival] * tokens)
        self._client.tokens += sum(counts) - len(counts)

    def _read_end(self, when: float, error: Exception | None) -> None:
        self._response.end_of_connection()
        if self._response.complete or self.answer.finish_reason is not None:
            self._finish(when)
        else:
            why = "the server closed the connection" if error is None else in_words(error)
            self.end(when, f"the stream broke off after {self.answer.tokens} tokens: {why}")

    def _finish(self, when: float) -> None:
        status = self._response.status
        error = self.answer.error
        if status != 200:
            error = f"HTTP {status}: {self._error_body.decode(errors='replace')}".rstrip(": ")
        elif error is None and self.answer.finish_reason is None:
            error = f"the stream ended after {self.answer.tokens} tokens without a finish reason"
            if self._response.content_type != "text/event-stream":
                error += f" (its content type is {self._response.content_type or 'not given'})"
        self.end(when, error)

    def _disconnect(self) -> None:
        # The transport knows the stream: without this, only a garbage collection would free both.
        transport, self._transport = self._transport, None
        if transport is not None:
            if self._response.complete:
                transport.close()
            else:  # the server learns at once that the reader is gone
                transport.abort()


def in_words(error: BaseException) -> str:
    """The system's words for an error, its message, or its kind where it has neither."""
    number = getattr(error, "errno", None) or 0
    if isinstance(error, OSError) and number > 0:
        return os.strerror(number)
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
