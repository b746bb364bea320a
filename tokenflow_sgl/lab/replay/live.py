"""The replay as it runs: figures twice per second, as a moving line or, in a log, every 10 s."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.qos import NOTICEABLE_STALL

_LINE_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a running replay. Times are seconds of the trace's clock.

    Attributes:
        time_s: Where the clock stands.
        total: Requests of the trace.
        sent: Sent so far.
        finished: Requests whose answers ended well.
        failed: Requests that failed, including turns that can no longer be sent.
        running: Streams that run.
        waiting: Of these, those whose first token has not come.
        tokens_per_s: Tokens per second since the last snapshot.
        ttft_p50_s: Median time from sending a request to its first token, of the last 1,000 that
            came; NaN: none came.
        ttft_p99_s: Its 99th percentile.
        stalled: Readers that have read all that came and have waited noticeably for more, now.
        uncounted: Readers of which that is not known: the server has not said how many tokens their
            text has.
    """

    time_s: float
    total: int
    sent: int
    finished: int
    failed: int
    running: int
    waiting: int
    tokens_per_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    stalled: int
    uncounted: int = 0

    @property
    def done(self) -> int:
        """Requests that have ended or failed."""
        return self.finished + self.failed


Observer = Callable[[Snapshot, float], None]
"""Takes how a replay stands and for how many seconds of the wall clock it has run."""


class LiveView:
    """Shows snapshots on a console; use `live_view`."""

    def __init__(self, console: Console, live: Live | None) -> None:
        self._console = console
        self._live = live
        self._next_line_s = _LINE_EVERY_S

    def restart(self) -> None:
        """Another run begins."""
        self._next_line_s = _LINE_EVERY_S

    def show(self, snapshot: Snapshot, wall_s: float) -> None:
        """Show a snapshot; `wall_s` is how long the replay has run by the wall clock."""
        if self._live is not None:
            self._live.update(_picture(snapshot), refresh=True)
        elif wall_s >= self._next_line_s:
            self._next_line_s = wall_s + _LINE_EVERY_S
            self._console.print(_line(snapshot), highlight=False, soft_wrap=True)


@contextmanager
def live_view(console: Console) -> Iterator[LiveView]:
    """A view on this console: it moves on a terminal, and is lines elsewhere."""
    if not console.is_terminal:
        yield LiveView(console, None)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield LiveView(console, live)


def _picture(snapshot: Snapshot) -> Group:
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(snapshot.total, snapshot.done, width=30),
        f"{snapshot.done:,} of {snapshot.total:,} requests",
        f"{snapshot.time_s:,.0f} s",
    )
    requests, tokens = _figures(snapshot)
    return Group(bar, Text("  ".join(requests)), Text("  ".join(tokens)))


def _line(snapshot: Snapshot) -> str:
    requests, tokens = _figures(snapshot)
    figures = ", ".join([*requests, *tokens])
    return f"{snapshot.time_s:7.0f} s  of {snapshot.total:,}: {figures}"


def _figures(snapshot: Snapshot) -> tuple[list[str], list[str]]:
    """The figures of the requests, and of the tokens, as text."""
    requests = [
        f"{snapshot.sent:,} sent",
        f"{snapshot.finished:,} finished",
        f"{snapshot.failed:,} failed",
        f"{snapshot.running:,} running",
        f"{snapshot.waiting:,} without a token",
    ]
    tokens = [f"{snapshot.tokens_per_s:,.0f} tokens/s"]
    if not math.isnan(snapshot.ttft_p50_s):
        tokens.append(f"TTFT P50 {snapshot.ttft_p50_s:.2f} s, P99 {snapshot.ttft_p99_s:.2f} s")
    unknown = f" ({snapshot.uncounted:,} not known yet)" if snapshot.uncounted else ""
    tokens.append(f"{snapshot.stalled:,} stalled for over {NOTICEABLE_STALL:g} s now{unknown}")
    return requests, tokens
