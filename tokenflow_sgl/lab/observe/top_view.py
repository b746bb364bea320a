"""The screen of `tokenflow top`, made from two readings of a server's metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.lab.observe.look import LEVEL_NAMES, MODES, Look, by_level
from tokenflow_sgl.metrics import LONGER

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 36
_LEVELS = ("running", "paused", "waiting")
_SHARES = ("10", "50", "90")
STYLES = ("bold red", "red", "yellow", "green", "cyan", "blue", "magenta")


@dataclass(frozen=True, slots=True)
class _Room:
    """What the screen has room for.

    Attributes:
        columns: Of text in a panel, of which two stand side by side.
        classes: Rows of classes; None: for all.
        gaps: Whether empty lines set parts of a panel apart.
    """

    columns: int
    classes: int | None
    gaps: bool

    def bar(self, beside: int) -> int:
        """Length of a bar or curve with so many columns of words beside it."""
        return max(min(WIDTH, self.columns - beside), 1)

    def parts(self, *parts: RenderableType) -> Group:
        """The parts of a panel."""
        apart = [each for part in parts for each in ("", part)][1:]
        return Group(*(apart if self.gaps else parts))


@dataclass(frozen=True, slots=True)
class Screen:
    """Everything on one screen, as large as that is: 80 columns of 24 lines suffice.

    Attributes:
        url: Of the server.
        look: What it says.
        lines: Of the screen; None: there is no end of them.
    """

    url: str
    look: Look
    lines: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The head, and below it two columns of two panels."""
        head = _head(self.url, self.look)
        classes = None
        if self.lines is not None and self.lines < _ROOMY:
            classes = max(self.lines - len(console.render_lines(head, options)) - _LEFT_LINES, 1)
        room = _Room(options.max_width // 2 - _FRAME, classes, gaps=classes is None)
        yield head
        sides = Table.grid(expand=True)
        sides.add_column(ratio=1)
        sides.add_column(ratio=1)
        sides.add_row(
            Group(_readers(self.look, room), _memory(self.look, room)),
            Group(_throughput(self.look, room), _scheduler(self.look)),
        )
        yield sides


_FRAME = 4
"""Columns of a panel's border and padding."""
_LEFT_LINES = 18
"""Lines of the left panels without those of the classes."""
_ROOMY = 36
"""Lines from which on panels have gaps, and all classes room."""


def _head(url: str, look: Look) -> Text:
    """Three lines: the server, its streams, its scheduler."""
    modes = [mode for mode, on in look.now.by("mode", "mode").items() if on > 0]
    stalled = look.level("stalled_streams")
    text = Text(f"{url}\n", style="bold")
    levels = (f"{look.level(f'{name}_streams'):,.0f} {name}" for name in _LEVELS)
    text.append(f"streams: {', '.join(levels)}, ", style="not bold")
    text.append(f"{stalled:,.0f} stalled", style="bold red" if stalled else "not bold green")
    text.append("\nscheduler: ", style="not bold")
    said = "; ".join(f"{mode}, {MODES.get(mode, 'a mode unknown here')}" for mode in modes)
    text.append(said, style="red" if "fallback" in modes else "not bold green")
    return text


def _readers(look: Look, room: _Room) -> Panel:
    """Streams by the length of their unread text."""
    counts = by_level(look.gained)
    whole = sum(counts)
    table = Table.grid(padding=(0, 1))
    for name, count, style in zip(LEVEL_NAMES, counts, STYLES, strict=True):
        share = count / whole if whole else 0.0
        bar = Text("█" * round(share * room.bar(beside=13)), style=style)
        table.add_row(name, bar, f"{share:.0%}")
    classes = Table("class", "P10", "P50", "P90", box=None, pad_edge=False)
    names = sorted(look.now.by("buffer_percentile_seconds", "qos_class"))
    rows = [(name, [_percentile(look, name, share) for share in _SHARES]) for name in names]
    if room.classes is not None:  # those that have readers, who have least to read first
        rows = [row for row in rows if not all(map(math.isnan, row[1]))] or rows
        rows.sort(key=lambda row: row[1][0])
        left = len(rows) - room.classes
        rows = rows[: room.classes - 1] if left > 0 else rows
    for name, values in rows:
        classes.add_row(name, *("-" if math.isnan(each) else f"{each:.1f} s" for each in values))
    if room.classes is not None and left > 0:
        classes.add_row(f"{left + 1} more", "", "", "")
    stalls = Text(
        f"{look.rate('stalls_total'):.2f} stalls/s {LONGER}\n"
        f"{look.rate('stall_seconds_total'):.2f} readers stalled on average"
    )
    parts = room.parts(table, classes, stalls)
    return Panel(parts, title="Unread output", title_align="left")


def _percentile(look: Look, qos_class: str, share: str) -> float:
    """Percentile of the rank whose readers are nearest to a stall."""
    return look.now.least("buffer_percentile_seconds", qos_class=qos_class, percentile=share)


def _throughput(look: Look, room: _Room) -> Panel:
    made, effective = (look.rate(f"{name}_tokens_total") for name in ("output", "effective"))
    table = Table.grid(padding=(0, 1))
    for name, number, place in (("tokens/s", made, 0), ("effective", effective, 1)):
        curve = _curve([each[place] for each in look.history], room.bar(beside=20))
        table.add_row(name, f"{number:,.0f}", Text(curve, style="cyan"))
    times = Table("", "P50", "P99", box=None, pad_edge=False)
    for name, metric in (("first token", "ttft_seconds"), ("between tokens", "tbt_seconds")):
        values = (look.gained.quantile(metric, share) for share in (0.5, 0.99))
        times.add_row(name, *map(_seconds, values))
    demand, capacity = (look.level(f"{name}_tokens_per_second") for name in ("demand", "capacity"))
    rates = Text(f"readers take {demand:,.0f} tokens/s, the engine made {capacity:,.0f} recently")
    return Panel(room.parts(table, times, rates), title="Throughput", title_align="left")


def _curve(values: list[float], width: int = WIDTH) -> str:
    most = max(values, default=0.0)
    if not most > 0.0:
        return ""
    return "".join(BARS[round(value / most * (len(BARS) - 1))] for value in values[-width:])


def _scheduler(look: Look) -> Panel:
    table = Table.grid(padding=(0, 1))
    for title, name, label in (
        ("preempted", "preemptions_total", "cause"),
        ("resumed", "resumes_total", "source"),
    ):
        parts = [
            f"{count / look.seconds:.1f} {value}"
            for value, count in look.gained.by(name, label).items()
            if count
        ]
        table.add_row(f"{title} per second", ", ".join(parts) or "none")
    table.add_row("policy pass, P50", _seconds(look.gained.quantile("policy_pass_seconds", 0.5)))
    # Each rank has a loop of its own.
    busiest = look.gained.most("scheduling_seconds_total") / look.seconds
    table.add_row("of the loop's time", f"{0.0 if math.isnan(busiest) else busiest:.1%}")
    errors = look.now.total("policy_errors_total")
    table.add_row("policy failures", Text(f"{errors:,.0f}", style="red" if errors else "green"))
    return Panel(table, title="Scheduler", title_align="left")


def _memory(look: Look, room: _Room) -> Panel:
    used, whole = (look.level(f"sglang:hicache_host_{name}_tokens") for name in ("used", "total"))
    width = room.bar(beside=15)
    rates = [
        look.rate(f"sglang:{name}_bytes_total") / 1e6 for name in ("hicache_backup", "load_back")
    ]
    queued = [look.level("link_queue_tokens", direction=name) for name in ("store", "load")]
    table = Table.grid(padding=(0, 1))
    table.add_row("device", _bar(look.most("sglang:token_usage"), width))
    table.add_row("host", _bar(used / whole if whole else 0.0, width))
    table.add_row("MB/s", "{:,.1f} to the host, {:,.1f} back".format(*rates))
    table.add_row("under way", "{:,.0f} tokens, {:,.0f} back".format(*queued))
    return Panel(table, title="KV memory and link", title_align="left")


def _bar(share: float, width: int) -> Text:
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"
    filled = round(min(share, 1.0) * width)
    text = Text("█" * filled, style=style)
    text.append("░" * (width - filled), style="dim")
    return text.append(f" {share:.0%}", style="default")


def _seconds(value: float) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:.2f} s" if value >= 1.0 else f"{1e3 * value:.1f} ms"
