"""The demo as it runs: both servers' readers side by side, at the same virtual second.

One server gets through its virtual seconds faster than the other. So the view keeps what each one
reported and shows both at the latest second that both have reached.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.lab.replay.live import Snapshot

_LINE_EVERY_S = 10.0
_WIDEST, _FRAME = 56, 4
"""Columns of a bar of readers at most, and of the frame around it."""
_STATES = (
    ("waiting", "grey62", "no token yet"),
    ("reading", "dodger_blue1", "reading"),
    ("stalled", "red", "stalled"),
    ("finished", "green", "answer complete"),
)


def readers(snapshot: Snapshot) -> dict[str, int]:
    """How many readers are in which state; those that have not asked yet are in none."""
    return {
        "waiting": snapshot.waiting,
        "reading": snapshot.running - snapshot.waiting - snapshot.stalled,
        "stalled": snapshot.stalled,
        "finished": snapshot.finished,
    }


class SideBySide:
    """Takes the servers' snapshots and shows them on a console; use `side_by_side`.

    Args:
        console: Where.
        live: What moves on it; None: plain lines.
        names: The servers.
    """

    def __init__(self, console: Console, live: Live | None, names: Sequence[str]) -> None:
        self._console, self._live = console, live
        self._seen: dict[str, list[Snapshot]] = {name: [] for name in names}
        self._next_line_s = _LINE_EVERY_S

    def observe(self, name: str, snapshot: Snapshot, wall_s: float) -> None:
        """Take one server's snapshot; `wall_s`: since it began, by the wall clock."""
        self._seen[name].append(snapshot)
        if self._live is not None:
            self._live.update(self._picture(), refresh=True)
        elif wall_s >= self._next_line_s:
            self._next_line_s += _LINE_EVERY_S
            self._console.print(self._line(), highlight=False, markup=False, soft_wrap=True)

    def now_s(self) -> float:
        """The latest virtual second that all servers have reached; one that is done has all."""
        reached = [_reached(snapshots) for snapshots in self._seen.values()]
        latest = max((each[-1].time_s for each in self._seen.values() if each), default=0.0)
        return min(*reached, latest)

    def at(self, name: str, moment_s: float) -> Snapshot | None:
        """The last snapshot of a server up to a virtual second; None: there is none yet."""
        snapshots = self._seen[name]
        found = bisect.bisect_right(snapshots, moment_s, key=lambda each: each.time_s)
        return snapshots[found - 1] if found else None

    def _picture(self) -> RenderableType:
        now = self.now_s()
        width = min(_WIDEST, (self._console.width - 1) // len(self._seen) - _FRAME)
        panels = [
            Panel(_side(self.at(name, now), width), title=name, width=width + _FRAME)
            for name in self._seen
        ]
        legend = Text()
        for _, colour, meaning in _STATES:
            legend.append("█ ", colour).append(f"{meaning}   ")
        return Group(Text(f"virtual time {now:6.1f} s"), Columns(panels), legend)

    def _line(self) -> str:
        now = self.now_s()
        sides = []
        for name in self._seen:
            snapshot = self.at(name, now)
            if snapshot is not None:
                counts = ", ".join(f"{n} {state}" for state, n in readers(snapshot).items())
                sides.append(f"{name}: {counts}, {snapshot.tokens_per_s:,.0f} tokens/s")
        return f"{now:6.1f} s  " + " | ".join(sides)


def _reached(snapshots: Sequence[Snapshot]) -> float:
    if not snapshots:
        return 0.0
    last = snapshots[-1]
    return float("inf") if last.done == last.total else last.time_s


def _side(snapshot: Snapshot | None, width: int) -> RenderableType:
    if snapshot is None:
        return Text("begins")
    bar, shown = Text(), 0
    counts = readers(snapshot)
    so_far = 0
    for state, colour, _ in reversed(_STATES):
        so_far += counts[state]
        cells = round(width * so_far / max(snapshot.total, 1)) - shown
        bar.append("█" * cells, colour)
        shown += cells
    table = Table.grid(padding=(0, 1))
    for _ in range(2):
        table.add_column(justify="right")
        table.add_column()
    counted = [Text(str(part)) for state, n in counts.items() for part in (n, state)]
    table.add_row(*counted[:4])
    table.add_row(*counted[4:])
    rate = Text(f"{snapshot.tokens_per_s:,.0f} tokens/s")
    return Group(bar, table, rate)


@contextmanager
def side_by_side(console: Console, names: Sequence[str]) -> Iterator[SideBySide]:
    """A view of these servers: it moves on a terminal, and is lines elsewhere."""
    if not console.is_terminal:
        yield SideBySide(console, None, names)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield SideBySide(console, live, names)
