"""Serves the live page: read-only, without a script or style of another host.

`/` is the whole page and works without scripts; the script fetches it again and puts in what has
changed. All texts of servers and logs are escaped by the template.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
from aiohttp import web

from tokenflow_sgl.errors import FailedError
from tokenflow_sgl.lab.observe.live.card import Card, Statement, Tone, card, readers
from tokenflow_sgl.lab.observe.live.comparison import differences
from tokenflow_sgl.lab.observe.live.decisions import newest
from tokenflow_sgl.lab.observe.live.watched_server import Answering, Seen, WatchedServer
from tokenflow_sgl.lab.observe.live.words import count

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


@dataclass(frozen=True, slots=True)
class Watched:
    """What the page shows.

    Attributes:
        servers: In their order; of two the second is compared with the first.
        logs: Logs of decisions.
        interval: Seconds after which the page asks again.
    """

    servers: Sequence[WatchedServer]
    logs: Sequence[Path]
    interval: float


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def application(watched: Watched, host: str) -> web.Application:
    """The page as a web application that listens on `host`.

    On loopback it answers only requests that name a loopback address: otherwise a page of another
    host, whose name is made to lead here, could read it.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FILES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.j2")

    @web.middleware
    async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if is_loopback(host) and not is_loopback(request.url.host or ""):
            raise web.HTTPForbidden(text="Only for this machine: open the page at 127.0.0.1.\n")
        return await handler(request)

    async def page(request: web.Request) -> web.Response:
        # Logs are files, which may lie on a slow disk.
        text = await asyncio.to_thread(lambda: template.render(_contents(watched)))
        return web.Response(text=text, content_type="text/html")

    async def file(request: web.Request) -> web.Response:
        path = FILES / request.path.removeprefix("/")
        return web.Response(text=path.read_text(), content_type=_TYPES[path.suffix])

    async def safe(request: web.Request, response: web.StreamResponse) -> None:
        response.headers.update(HEADERS)

    app = web.Application(middlewares=[guard])
    app.on_response_prepare.append(safe)
    app.router.add_get("/", page)
    for name in ("page.css", "page.js"):
        app.router.add_get(f"/{name}", file)
    return app


def _contents(watched: Watched) -> dict[str, object]:
    """What the template shows."""
    seen = [each.seen() for each in watched.servers]
    cards = [card(each) for each in seen]
    return {
        "interval": watched.interval,
        "verdict": _whole(seen, cards),
        "note": _servers(seen),
        "cards": cards,
        "differences": differences(*seen) if len(seen) == 2 else [],
        "decisions": newest(watched.logs),
    }


def _whole(seen: Sequence[Seen], cards: Sequence[Card]) -> Statement:
    """The first sentence of the page: of all servers together."""
    if len(cards) == 1:
        return cards[0].verdict
    knowing = [
        each.recent for each in seen if each.answering is Answering.TOKENFLOW and each.recent
    ]
    if knowing:
        try:
            return readers(knowing)
        except (ArithmeticError, ValueError):
            return Statement("Figures of a server make no sense", Tone.NONE)
    stock = any(each.answering is Answering.STOCK for each in seen)
    return Statement("No server knows its readers" if stock else "No server answers", Tone.NONE)


def _servers(seen: Sequence[Seen]) -> str:
    """How many servers there are, and of which kind, where that is not one that answers."""
    kinds = {
        Answering.TOKENFLOW: "with tokenflow",
        Answering.STOCK: "stock SGLang",
        Answering.SILENT: "silent",
        Answering.ASKED: "being asked",
    }
    numbers = {kind: sum(each.answering is kind for each in seen) for kind in kinds}
    parts = [f"{number} {kinds[kind]}" for kind, number in numbers.items() if number]
    return f"{count(len(seen), 'server', 'servers')}: {', '.join(parts)}"


async def serve_page(
    watched: Watched, host: str, port: int, listening: Callable[[str], None]
) -> None:
    """Serve until cancelled.

    Args:
        watched: What is shown; its servers are read meanwhile.
        host: Address to listen on.
        port: Port there; 0 takes a free one.
        listening: Told the page's URL once it can be opened.

    Raises:
        FailedError: The address or the port cannot be had.
    """
    runner = web.AppRunner(application(watched, host), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise FailedError(
                f"the page cannot listen on port {port} of {host} ({error.strerror}). Next: give "
                "another --port, or --host"
            ) from None
        for each in watched.servers:
            each.start()
        bound = runner.addresses[0]
        name = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        listening(f"http://{name}:{bound[1]}")
        await asyncio.Event().wait()
    finally:
        for each in watched.servers:
            each.stop()
        await runner.cleanup()
