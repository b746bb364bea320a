"""Serves a page that fetches itself anew: read-only, with no script or style of another host."""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import jinja2
from aiohttp import web

from tokenflow_sgl.errors import FailedError

FILES = Path(__file__).parent / "files"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_TYPES = {".css": "text/css", ".js": "text/javascript"}
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def template(folder: Path, name: str) -> jinja2.Template:
    """A template that escapes every text, and fails where one is missing."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, FILES]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def application(page: Callable[[], Awaitable[str]], host: str) -> web.Application:
    """The page as a web application that listens on `host`.

    On loopback it answers only requests that name a loopback address: otherwise a page of another
    host, whose name is made to lead here, could read it.

    Args:
        page: Its text, with the parts that change marked for `page.js`.
        host: As of `listening`.
    """

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if is_loopback(host) and not is_loopback(request.url.host or ""):
            raise web.HTTPForbidden(text="Only for this machine: open the page at 127.0.0.1.\n")
        return await handler(request)

    async def whole(request: web.Request) -> web.Response:
        return web.Response(text=await page(), content_type="text/html")

    async def file(request: web.Request) -> web.Response:
        path = FILES / request.path.removeprefix("/")
        return web.Response(text=path.read_text(), content_type=_TYPES[path.suffix])

    async def safe(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(HEADERS)

    app = web.Application(middlewares=[guard])
    app.on_response_prepare.append(safe)
    app.router.add_get("/", whole)
    for name in ("page.css", "page.js"):
        app.router.add_get(f"/{name}", file)
    return app


@contextlib.asynccontextmanager
async def listening(app: web.Application, host: str, port: int) -> AsyncIterator[str]:
    """Serve it meanwhile; gives the page's URL.

    Args:
        app: As of `application`.
        host: Address to listen on.
        port: Port there; 0 takes a free one.

    Raises:
        FailedError: The address or the port cannot be had.
    """
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise FailedError(
                f"the page cannot listen on port {port} of {host} ({error.strerror}). Next: give "
                "another --port, or --host"
            ) from None
        bound = runner.addresses[0]
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        yield f"http://{name}:{bound[1]}"
    finally:
        await runner.cleanup()
