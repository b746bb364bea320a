"""One address for a disaggregated pair: what a client asks goes to both servers, as by a router."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web
from servers.client import Served
from servers.meeting import ROOMS, Pair

ANSWERED = ("/generate", "/v1/completions", "/v1/chat/completions")
ON_BOTH = ("/abort_request", "/flush_cache")
"""What the decode server is told first, and the prefill server then."""
PAUSES = ("/pause_generation", "/continue_generation")
"""What only the decode server is told."""
STARTING, TAKING_UP = 30.0, 0.1
"""Seconds until it answers, at most, and until a server that is not paused has read a prompt."""


class PairFront:
    """Answers are the decode server's. A client that leaves is gone for both.

    What of it a test asks as of a server is here, too: its process is as alive as both are.

    Attributes:
        port: Where it answers.
        log_path: Of the decode server.
    """

    def __init__(self, both: Pair) -> None:
        self._both = both
        self._session: aiohttp.ClientSession
        self._paused = False
        self._taking_up: dict[str, asyncio.Task[None]] = {}
        self.port = 0
        self.log_path: Path = both.decode.server.log_path

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def is_alive(self) -> bool:
        """Whether both servers are."""
        return self._both.prefill.server.is_alive() and self._both.decode.server.is_alive()

    def log_tail(self, lines: int = 40) -> str:
        """The last lines of both logs."""
        return "\n".join(
            each.server.log_tail(lines) for each in (self._both.prefill, self._both.decode)
        )

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Answer meanwhile, in a thread."""
        loop, ready = asyncio.new_event_loop(), threading.Event()
        ends = asyncio.Event()

        async def answer() -> None:
            runner = web.AppRunner(self._app(), handler_cancellation=True, shutdown_timeout=1.0)
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self.port = runner.addresses[0][1]
                ready.set()
                await ends.wait()
            finally:
                await runner.cleanup()

        thread = threading.Thread(target=lambda: loop.run_until_complete(answer()), name="front")
        thread.start()
        try:
            assert ready.wait(STARTING), "the pair's front does not start"
            yield
        finally:
            loop.call_soon_threadsafe(ends.set)
            thread.join()
            loop.close()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.add_routes([web.post(path, self._ask) for path in ANSWERED])
        app.add_routes([web.post(path, self._tell) for path in ON_BOTH])
        app.add_routes([web.post(path, self._pause) for path in PAUSES])
        app.add_routes([web.route("*", "/{path:.*}", self._pass_on)])
        app.cleanup_ctx.append(self._connected)
        return app

    async def _connected(self, app: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self._session:
            yield

    async def _ask(self, request: web.Request) -> web.StreamResponse:
        """A request for an answer."""
        raw = await request.read()
        try:
            body = json.loads(raw)
        except ValueError:
            return await self._pass_on(request)
        body |= {
            "rid": body.get("rid") or uuid.uuid4().hex,
            "bootstrap_host": "127.0.0.1",
            "bootstrap_port": self._both.port,
            "bootstrap_room": next(ROOMS),
        }
        rid = str(body["rid"])
        self._taking_up[rid] = asyncio.create_task(self._take_up())
        first = asyncio.create_task(self._prefill(request.path, {**body, "stream": False}))
        try:
            return await self._stream(request, json.dumps(body).encode())
        finally:
            self._taking_up.pop(rid, None)
            first.cancel()
            with contextlib.suppress(asyncio.CancelledError, aiohttp.ClientError):
                await first

    async def _take_up(self) -> None:
        """Until the decode server has handed a request on, which it does not in a pause.

        SGLang's front end takes an abort that comes earlier for done: the scheduler has not heard
        of that request and forgets it, and no second one is passed on.
        """
        await asyncio.sleep(TAKING_UP)
        while self._paused:
            await asyncio.sleep(TAKING_UP)

    async def _prefill(self, path: str, body: dict[str, object]) -> None:
        """What was ended here while it was on its way there would wait there for its KV."""
        first, second = (each.server.url for each in (self._both.prefill, self._both.decode))
        async with self._session.post(first + path, json=body) as answer:
            said = await answer.text()
        if answer.status != 200 or '"abort"' in said:
            await self._known(body["rid"])
            async with self._session.post(second + "/abort_request", json={"rid": body["rid"]}):
                pass

    async def _known(self, rid: object) -> None:
        """Until the decode server can end that request, if it was asked for it."""
        if task := self._taking_up.get(str(rid)):
            await asyncio.shield(task)

    async def _pause(self, request: web.Request) -> web.StreamResponse:
        """From before it pauses until after it goes on."""
        self._paused = True
        try:
            return await self._pass_on(request)
        finally:
            self._paused = request.path != PAUSES[1]

    async def _tell(self, request: web.Request) -> web.StreamResponse:
        """The reply is the prefill server's where only that refuses."""
        raw, replies = await request.read(), []
        with contextlib.suppress(ValueError, AttributeError):  # what servers refuse
            await self._known(json.loads(raw).get("rid"))
        for each in (self._both.decode, self._both.prefill):
            url = each.server.url + request.raw_path
            async with self._session.post(url, data=raw, headers=_kind(request)) as answer:
                replies.append(web.Response(status=answer.status, body=await answer.read()))
        return next((reply for reply in replies if reply.status != 200), replies[0])

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        return await self._stream(request, await request.read())

    async def _stream(self, request: web.Request, raw: bytes) -> web.StreamResponse:
        """The decode server's answer, as it comes."""
        url = self._both.decode.server.url + request.raw_path
        async with self._session.request(
            request.method, url, data=raw, headers=_kind(request)
        ) as answer:
            passed = web.StreamResponse(status=answer.status, headers=_kind(answer))
            await passed.prepare(request)
            async for part in answer.content.iter_any():
                await passed.write(part)
            await passed.write_eof()
            return passed


def _kind(message: web.Request | aiohttp.ClientResponse) -> dict[str, str]:
    return {"content-type": message.headers.get("content-type", "application/json")}


@dataclass
class ServedPair(Served):
    """Both servers behind one address.

    Attributes:
        both: These.
    """

    both: Pair

    @property
    def ports(self) -> tuple[int, ...]:
        return self.both.prefill.server.port, self.both.decode.server.port

    def log(self) -> str:
        return self.both.prefill.log() + self.both.decode.log()


@contextmanager
def fronted(both: Pair) -> Iterator[ServedPair]:
    """Both servers behind one address, and afterwards nothing is left on the prefill server."""
    front = PairFront(both)
    with front.answering():
        yield ServedPair(front, both)  # type: ignore[arg-type]  # it is asked as a server is
    both.prefill.assert_clean()
