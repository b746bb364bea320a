"""``tokenflow top``: running servers, live, in the terminal or on a page in the browser."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.live import Live

from tokenflow_sgl.cli.extras import WEB, need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import address, finite
from tokenflow_sgl.cli.shared_options import shares_options
from tokenflow_sgl.lab.observe import Scrape, scheduler_page

if TYPE_CHECKING:
    from tokenflow_sgl.lab.observe.look import History, Look

KEPT = 60
"""Readings that the small curves show."""
DEFAULT = "http://127.0.0.1:30000"
MOST_SERVERS = 64


@dataclass(frozen=True, slots=True)
class WebOptions:
    """Options of the page in the browser."""

    web: Annotated[
        bool, typer.Option("--web", help="Show a page in the browser instead; it only reads.")
    ] = False
    host: Annotated[str, typer.Option(help="Address that the page listens on.")] = "127.0.0.1"
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the page; 0: any that is free.")
    ] = 8765
    decision_log: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="File of a server's --tokenflow-decision-log, for the page; may be repeated.",
        ),
    ] = None


def _addresses(urls: list[str] | None) -> list[str] | None:
    """Refuse what is no address of a server, or has a password, which the page would show."""
    for url in urls or []:
        address(url)
        if "@" in urlsplit(url).netloc:
            raise typer.BadParameter("a URL with a password is not allowed; leave out all before @")
    return urls


@shares_options
def top(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL",
            help="Base URLs: of one server for the terminal, of any number for --web, which "
            "compares the second of two with the first.",
            callback=_addresses,
            show_default=DEFAULT,
        ),
    ] = None,
    interval: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            min=1.0,
            max=3600.0,
            help="Time between two readings of the metrics.",
            callback=finite,
        ),
    ] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Print one screen after two readings, and end.")
    ] = False,
    *,
    page: WebOptions,
) -> None:
    """Watch running servers: how many readers stall or are ahead, and what the scheduler does.

    A server needs --scheduler tokenflow --enable-metrics; the page shows stock SGLang, too, as
    far as its metrics go. Ends with Ctrl-C.
    """
    urls = urls or [DEFAULT]
    logs = page.decision_log or []
    if page.web:
        _web(urls, interval, page, once=once)
        return
    if len(urls) > 1 or logs:
        what = "a decision log" if logs else f"{len(urls)} servers"
        fail(f"The terminal shows one server's metrics; for {what} add --web.", Exit.usage)
    _terminal(urls[0], interval, once)


def _web(urls: list[str], interval: float, page: WebOptions, *, once: bool) -> None:
    """The page in the browser, until Ctrl-C."""
    if once:
        fail("--once prints a screen in the terminal: leave out --web.", Exit.usage)
    if len(urls) > MOST_SERVERS:
        fail(f"{len(urls)} servers are too many; a page has at most {MOST_SERVERS}.", Exit.usage)
    need("--web", *WEB)
    import asyncio

    from tokenflow_sgl.lab.observe.live import Watched, WatchedServer, is_loopback, serve_page

    def listening(url: str) -> None:
        servers = "1 server" if len(urls) == 1 else f"{len(urls)} servers"
        typer.echo(f"Watching {servers}: open {url}")
        if not is_loopback(page.host):
            typer.echo("Whoever reaches that address can read the page; it asks for no password.")
        typer.echo("Ctrl-C ends it.")

    watched = Watched(
        [WatchedServer(url, interval) for url in urls], page.decision_log or [], interval
    )
    with contextlib.suppress(KeyboardInterrupt), failing():
        asyncio.run(serve_page(watched, page.host, page.port, listening))


def _terminal(url: str, interval: float, once: bool) -> None:
    """The screen in the terminal, until Ctrl-C or, with `once`, one time."""
    # Only here: the CLI must start without numpy.
    from tokenflow_sgl.lab.observe.top_view import Screen

    console = Console()
    history: History = deque(maxlen=KEPT)
    with contextlib.suppress(KeyboardInterrupt), failing():
        before = _look(url)
        if once:
            time.sleep(interval)
            console.print(Screen(url, _compare(before, _look(url), history)))
            return
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                now = _look(url)
                look = _compare(before, now, history)
                live.update(Screen(url, look, console.height), refresh=True)
                before = now


def _look(url: str) -> tuple[Scrape, float]:
    return scheduler_page(url), time.monotonic()


def _compare(before: tuple[Scrape, float], now: tuple[Scrape, float], history: History) -> Look:
    from tokenflow_sgl.lab.observe.look import Look

    look = Look(now[0], now[0].since(before[0]), now[1] - before[1], history)
    history.append((look.rate("output_tokens_total"), look.rate("effective_tokens_total")))
    return look
