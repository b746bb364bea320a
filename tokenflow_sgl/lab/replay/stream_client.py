"""Streams to one server: sends requests, stamps when bytes arrive, and reads them afterwards.

Two things make the stamps good with thousands of streams. A stamp is taken the moment the event
loop hands over the bytes; what they say is read later, in small slices between two looks at the
sockets, so that one stream's reading does not delay another's stamp. And there is no task and no
wake-up per chunk: with aiohttp's reader 40,000 chunks per second took a whole core, and stamps came
up to 0.4 s late (benchmarks/replay_client.py measures this client).

Every request has a connection of its own, as independent readers have. Times here are
`time.monotonic()`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

from tokenflow_sgl.lab.replay.answers import Answer
from tokenflow_sgl.lab.replay.replay_options import ReplayError, TargetError
from tokenflow_sgl.lab.replay.stream import Stream, in_words

_SLICE = 64
"""Pieces to parse before the loop polls the sockets again: well below a millisecond."""
_CONNECT_S = 60.0


class StreamClient:
    """Opens streams to one server and reads them all.

    Attributes:
        running: Streams that have not ended.
        tokens: Tokens of all streams so far.
        ttft_s: Wait for the first token of every stream that has one, in the order of arrival.

    Args:
        url: Base URL; a path in it goes before every endpoint's.
        headers: Additional headers of every request.

    Raises:
        ReplayError: The URL is not one of HTTP.
    """

    def __init__(self, url: str, *, headers: Mapping[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ReplayError(f"url is {url!r}; allowed is http://HOST[:PORT] or https://...")
        self.running: set[Stream] = set()
        self.tokens = 0
        self.ttft_s = array("d")
        self._host: str = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._prefix = parts.path.rstrip("/")
        lines = [
            f"Host: {parts.netloc.rpartition('@')[2]}",
            "Content-Type: application/json",
            "Accept: text/event-stream",
            "Connection: close",
            *(f"{name}: {value}" for name, value in (headers or {}).items()),
        ]
        self._headers = "\r\n".join(lines)
        self._address = self._host
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[tuple[Stream, float, bytes | Exception | None]] = deque()
        self._connecting: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Find the address that answers, once, so that no request waits for a name.

        Raises:
            TargetError: None does.
        """
        try:
            transport, _ = await asyncio.wait_for(self._connection(asyncio.Protocol), _CONNECT_S)
        except (OSError, TimeoutError) as error:
            raise TargetError(
                f"no connection to {self._host}:{self._port}: {in_words(error)}"
            ) from (None)
        self._address = transport.get_extra_info("peername")[0]
        transport.close()

    def send(
        self,
        path: str,
        body: bytes,
        answer: Answer,
        *,
        rate: float,
        on_end: Callable[[Stream], None],
    ) -> Stream:
        """Send one request now.

        Args:
            path: Path of the endpoint.
            body: The JSON body.
            answer: Reads the chunks.
            rate: Tokens per second of the wall clock that the reader consumes.
            on_end: Called once, when the answer has ended or failed.
        """
        head = (
            f"POST {self._prefix}{path} HTTP/1.1\r\n{self._headers}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        stream = Stream(self, head.encode("latin-1") + body, answer, rate, on_end)
        self.running.add(stream)
        task = self._loop.create_task(self._connect(stream))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return stream

    def give_up_silent(self, timeout_s: float) -> None:
        """End the streams that have brought no token for so many seconds."""
        now = time.monotonic()
        for stream in [each for each in self.running if now - each.last_token > timeout_s]:
            stream.end(now, f"given up: no token came for {timeout_s:g} s of the wall clock")

    def stalled(self, threshold_s: float) -> int:
        """Readers that have read all tokens and have waited so many seconds for more.

        Those are left out whose text is not counted yet, see `uncounted`.
        """
        due = time.monotonic() - threshold_s
        return sum(
            1 for each in self.running if 0.0 < each.next_due < due and not each.answer.uncounted
        )

    def uncounted(self) -> int:
        """Readers whose amount of text is not known yet: their server says it later."""
        return sum(1 for stream in self.running if stream.answer.uncounted)

    def waiting(self) -> int:
        """Readers whose first visible token has not come."""
        return sum(1 for stream in self.running if not stream.next_due)

    async def close(self) -> None:
        """Read what has arrived, then cut off every stream that still runs."""
        while self._arrived:
            self._read_some()
        for stream in list(self.running):
            stream.cut(time.monotonic())
        for task in list(self._connecting):
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def arrived(self, stream: Stream, when: float, data: bytes | Exception | None) -> None:
        """Queue what arrived for reading, after all that has arrived before it."""
        if not self._arrived:
            self._loop.call_soon(self._read_some)
        self._arrived.append((stream, when, data))

    def forget(self, stream: Stream) -> None:
        """Drop a stream that has ended."""
        self.running.discard(stream)

    def _read_some(self) -> None:
        arrived = self._arrived
        try:
            for _ in range(min(_SLICE, len(arrived))):
                stream, when, data = arrived.popleft()
                stream.read(when, data)
        finally:  # what one stream brings must not keep the others from being read
            if arrived:
                self._loop.call_soon(self._read_some)

    async def _connect(self, stream: Stream) -> None:
        try:
            await self._connection(lambda: stream)
        except OSError as error:
            stream.refused = True
            stream.end(time.monotonic(), f"no connection to the server: {in_words(error)}")

    async def _connection(
        self, factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self._loop.create_connection(
            factory,
            self._address,
            self._port,
            ssl=self._tls,
            server_hostname=self._host if self._tls else None,
        )
