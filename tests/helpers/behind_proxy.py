"""Servers that only pretend, and examples/headroom_proxy.py in front of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import headroom_proxy
from aiohttp import web
from headroom_proxy import FIELD, Proxy

ONCE = 1e6
"""Seconds between readings, where a test wants only the first one."""
OFTEN = 0.02
SECONDS = 30.0
"""Until what is waited for counts as not coming."""
headroom_proxy.TIMEOUT_S = SECONDS  # its servers run in the same process, which may stand still


async def at_once(request: web.Request) -> web.StreamResponse:
    """An answer in one piece."""
    return web.Response(text="done")


class Server:
    """Pretends to be SGLang: says its headroom, and answers as told."""

    def __init__(self, headroom: object = 1000, answer: Callable[..., Awaitable] = at_once):
        self.load: dict[str, object] = {FIELD: headroom}
        self.other_ranks: list[dict[str, object]] = []
        self.asked: list[web.Request] = []
        self.bodies: list[bytes] = []
        self.streams: set[str] = set()
        """Ids of streams that it knows."""
        self.heard: list[tuple[str, str, str]] = []
        """What it was told of streams: id, method and body."""
        self.strayed: list[str] = []
        """Paths of requests that no proxy should pass on."""
        self.left = asyncio.Event()
        """Set when a client has gone away before its answer was complete."""
        self._answer = answer

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes([web.get("/v1/loads", self.loads), web.get("/v1/models", at_once)])
        app.add_routes([web.post(path, self.generate) for path in headroom_proxy.ANSWERED])
        app.add_routes([web.route("*", "/tokenflow/streams/{rid:.+}", self.told)])
        app.add_routes([web.route("*", "/{path:.*}", self.stray)])
        return app

    async def stray(self, request: web.Request) -> web.Response:
        """Whatever else a server can be asked."""
        self.strayed.append(request.raw_path)
        return web.Response()

    async def told(self, request: web.Request) -> web.Response:
        """As SGLang: 404 for what it has not, else an answer that says what it was told."""
        said = request.match_info["rid"], request.method, (await request.read()).decode()
        self.heard.append(said)
        if said[0] not in self.streams:
            return web.json_response({"error": {"message": "none of mine"}}, status=404)
        if request.headers.get("Authorization") == "Bearer wrong":
            return web.json_response({"error": {"message": "no access"}}, status=401)
        return web.Response(status=204)

    async def loads(self, request: web.Request) -> web.Response:
        return web.json_response({"loads": [self.load, *self.other_ranks]})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        self.bodies.append(await request.read())
        try:
            return await self._answer(request)
        except asyncio.CancelledError:
            self.left.set()
            raise


@contextlib.asynccontextmanager
async def serving(app: web.Application, port: int = 0) -> AsyncIterator[str]:
    """The application on a port of its own; gives its URL."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def proxied(*servers: Server, read_every: float = ONCE) -> AsyncIterator[tuple]:
    """A client's session whose base is a proxy in front of the servers, and the proxy."""
    async with contextlib.AsyncExitStack() as stack:
        urls = [await stack.enter_async_context(serving(each.app())) for each in servers]
        proxy = Proxy(urls, read_every)
        base = await stack.enter_async_context(serving(proxy.app()))
        yield await stack.enter_async_context(aiohttp.ClientSession(base)), proxy


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not holds():
            await asyncio.sleep(OFTEN)
