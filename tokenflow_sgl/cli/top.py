"""``tokenflow top``: a server's streams, readers, memory and links, live in the terminal."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live

from tokenflow_sgl.cli.failing import failing
from tokenflow_sgl.cli.option_checks import address, finite
from tokenflow_sgl.lab.observe import Scrape, scheduler_page

if TYPE_CHECKING:
    from tokenflow_sgl.lab.observe.top_view import History, Look

KEPT = 60
"""Readings that the small curves show."""


def top(
    url: Annotated[
        str, typer.Argument(help="Base URL of the server.", callback=address)
    ] = "http://127.0.0.1:30000",
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
) -> None:
    """Watch a running server: how many readers stall or are ahead, and what the scheduler does.

    The server needs --scheduler tokenflow --enable-metrics. Ends with Ctrl-C.
    """
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
    from tokenflow_sgl.lab.observe.top_view import Look

    look = Look(now[0], now[0].since(before[0]), now[1] - before[1], history)
    history.append((look.rate("output_tokens_total"), look.rate("effective_tokens_total")))
    return look
