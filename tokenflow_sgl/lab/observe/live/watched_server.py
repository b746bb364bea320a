"""Reads one server's metrics page again and again, and keeps what the live page needs of it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from tokenflow_sgl.lab.observe.look import Look
from tokenflow_sgl.lab.observe.metrics_page import TIMEOUT_SECONDS, Scrape, ScrapeError, scrape
from tokenflow_sgl.metrics import METRICS

RECENT_SECONDS = 30.0
"""How far figures of the last while look back."""
MOST_READINGS = 16
"""Readings that are kept of that while: a page of a server that lies may be long."""
REST = 4.0
"""A page that takes a second to read is read again after so many."""
SGLANG = {
    f"sglang:{name}"
    for name in (
        "num_running_reqs",
        "num_queue_reqs",
        "token_usage",
        "realtime_tokens_total",
        "time_to_first_token_seconds_bucket",
        "inter_token_latency_seconds_bucket",
        "hicache_host_used_tokens",
        "hicache_host_total_tokens",
    )
}
"""Series of SGLang's own that are shown, also of a server without this package's scheduler."""
OURS = {
    f"{name}{suffix}"
    for name, metric in METRICS.items()
    for suffix in (("_bucket",) if metric.kind == "histogram" else ("",))
}


class Answering(StrEnum):
    """What a server is, by its last answer."""

    ASKED = "asked"
    """It has had no time to answer yet."""
    TOKENFLOW = "tokenflow"
    STOCK = "stock"
    """SGLang without metrics of this package's scheduler."""
    SILENT = "silent"
    """It does not answer, or not with a page that can be used."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known of one server at a moment.

    Attributes:
        name: Host and port.
        answering: What it is.
        why: Why it does not answer, one sentence; else empty.
        last: Between its last two readings; None: there is no usable one.
        recent: Over the last `RECENT_SECONDS`.
        whole: Since its first reading.
    """

    name: str
    answering: Answering
    why: str = ""
    last: Look | None = None
    recent: Look | None = None
    whole: Look | None = None


class WatchedServer:
    """One server, read by a thread of its own, so that one that hangs delays no other.

    Args:
        url: Base URL.
        interval: Seconds between two readings.
        read: Gets its metrics; raises ScrapeError.
        clock: Seconds, monotonic.
    """

    def __init__(
        self,
        url: str,
        interval: float,
        read: Callable[[str], Scrape] = scrape,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._interval = interval
        self._read = read
        self._clock = clock
        self._name = urlsplit(url).netloc.rpartition("@")[2]
        self._kept: deque[tuple[float, Scrape]] = deque(maxlen=MOST_READINGS)
        self._first: tuple[float, Scrape] | None = None
        self._why = ""
        self._began = clock()
        self._lock = threading.Lock()
        self._over = threading.Event()

    def start(self) -> None:
        """Begin to read, until `stop`; a reading that hangs keeps no program from ending."""
        threading.Thread(target=self._run, daemon=True, name=f"watch {self._name}").start()

    def stop(self) -> None:
        """Read no more."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            began = self._clock()
            self.look()
            self._over.wait(max(self._interval, REST * (self._clock() - began)))

    def look(self) -> None:
        """Read once."""
        why = ""
        page = Scrape({})
        try:
            page = _kept(self._read(self._url))
        except ScrapeError as error:
            why = str(error)
        now = self._clock()
        with self._lock:
            self._began, self._why = now, why
            if why:
                self._kept.clear()
                return
            self._first = self._first or (now, page)
            # The newest always replaces the one before, until that is old enough to be kept.
            step = RECENT_SECONDS / (MOST_READINGS - 2)
            if len(self._kept) > 2 and self._kept[-1][0] - self._kept[-2][0] < step:
                self._kept.pop()
            self._kept.append((now, page))

    def seen(self) -> Seen:
        """What is known now."""
        with self._lock:
            kept, first, why = [*self._kept], self._first, self._why
            age = self._clock() - self._began
        late = age > self._interval + 2.0 * TIMEOUT_SECONDS
        if why or late:
            why = why or f"it has not answered for {age:.0f} s. Next: see whether it is up"
            return Seen(self._name, Answering.SILENT, why)
        if not kept or first is None:
            return Seen(self._name, Answering.ASKED)
        now = kept[-1]
        last = kept[max(len(kept) - 2, 0)]
        within = next((each for each in kept[:-1] if now[0] - each[0] <= RECENT_SECONDS), last)
        kind = Answering.TOKENFLOW if now[1].has("mode") else Answering.STOCK
        looks = (_between(since, now) for since in (last, within, first))
        return Seen(self._name, kind, "", *looks)


def _kept(page: Scrape) -> Scrape:
    """The series that are shown."""
    wanted = OURS | SGLANG
    return Scrape({name: each for name, each in page.samples.items() if name in wanted})


def _between(before: tuple[float, Scrape], now: tuple[float, Scrape]) -> Look:
    seconds = now[0] - before[0]
    return Look(now[1], now[1].since(before[1]), seconds if seconds > 0.0 else 1.0)
