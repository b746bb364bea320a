"""Metrics pages as servers write them, and the live page that is made of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tokenflow_sgl.lab.observe import Scrape, ScrapeError, parse
from tokenflow_sgl.lab.observe.live.live_page import Watched
from tokenflow_sgl.lab.observe.live.watched_server import WatchedServer

STOCK = """
sglang:num_running_reqs{model_name="m"} 7.0
sglang:num_queue_reqs{model_name="m"} 3.0
sglang:token_usage{model_name="m"} 0.97
"""


def buckets(name: str, bounds: dict[str, float]) -> str:
    """The cumulated buckets of one histogram."""
    lines = [f'{name}_bucket{{le="{bound}"}} {upto}\n' for bound, upto in bounds.items()]
    return f"# TYPE {name} histogram\n{''.join(lines)}"


def tokenflow(
    reading: float = 40.0,
    stalled: float = 0.0,
    waiting: float = 0.0,
    ended: tuple[float, float] = (0.0, 0.0),
    first_token: dict[str, float] | None = None,
    more: str = "",
) -> str:
    """The page of a server with the scheduler.

    ended: Streams that ended without and with a stall.
    first_token: Buckets of SGLang's own histogram.
    """
    smooth, bad = ended
    return (
        'tokenflow:mode{mode="working-set"} 1\ntokenflow:mode{mode="idle"} 0\n'
        f'tokenflow:reading_streams{{qos_class="reading"}} {reading}\n'
        f'tokenflow:stalled_streams{{qos_class="reading"}} {stalled}\n'
        f"tokenflow:waiting_streams {waiting}\n"
        f'tokenflow:finished_streams_total{{qos_class="reading",stalled="no"}} {smooth}\n'
        f'tokenflow:finished_streams_total{{qos_class="reading",stalled="yes"}} {bad}\n'
        + buckets("sglang:time_to_first_token_seconds", first_token or {"+Inf": 0})
        + more
    )


class Clock:
    """Time that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def server(
    pages: Sequence[str | Scrape], name: str = "http://one:30000", every: float = 10.0
) -> WatchedServer:
    """A server that has answered with these pages, one by one; "" is no answer."""
    clock = Clock()
    left: Iterator[str | Scrape] = iter(pages)

    def read(url: str) -> Scrape:
        page = next(left)
        if not page:
            raise ScrapeError("no server answers there (refused). Next: see whether it is up")
        return page if isinstance(page, Scrape) else parse(page)

    watched = WatchedServer(name, every, read, clock)
    for _ in pages:
        clock.now += every
        watched.look()
    return watched


def watching(*servers: WatchedServer, logs: Sequence[Path] = ()) -> Watched:
    """What the page shows of these servers."""
    return Watched(servers, logs, 2.0)
