"""The live page of servers. `/` is all of it and works without scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web

from tokenflow_sgl.lab.observe.live import serving
from tokenflow_sgl.lab.observe.live.card import Card, Statement, Tone, card, readers
from tokenflow_sgl.lab.observe.live.comparison import differences
from tokenflow_sgl.lab.observe.live.decisions import newest
from tokenflow_sgl.lab.observe.live.watched_server import Answering, Seen, WatchedServer
from tokenflow_sgl.lab.observe.live.words import count


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


def application(watched: Watched, host: str) -> web.Application:
    """The page as a web application that listens on `host`."""
    template = serving.template(serving.FILES, "page.html.j2")

    async def page() -> str:
        # Logs are files, which may lie on a slow disk.
        return await asyncio.to_thread(lambda: template.render(_contents(watched)))

    return serving.application(page, host)


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
    async with serving.listening(application(watched, host), host, port) as url:
        try:
            for each in watched.servers:
                each.start()
            listening(url)
            await asyncio.Event().wait()
        finally:
            for each in watched.servers:
                each.stop()
