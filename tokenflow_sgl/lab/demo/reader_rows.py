"""What each reader sees on two servers, side by side at one moment, as rows of a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from tokenflow_sgl.lab.demo.spoken import Doing, SeenWords, Spoken

_FRAME = 4
_WIDEST = 76
"""Columns of a row at most."""
_NAME, _BEHIND = 6, 7
"""Columns of a name, and of what stands behind the text."""
LOOKS = {
    Doing.waiting: ("grey62", "○"),
    Doing.reading: ("dodger_blue1", "●"),
    Doing.stalled: ("red", "■"),
    Doing.done: ("green", "✓"),
    Doing.absent: ("grey35", " "),
}
MEANINGS = {
    Doing.waiting: "no word yet",
    Doing.reading: "reads",
    Doing.stalled: "stalled",
    Doing.done: "has read all",
}


def picture(servers: Mapping[str, Sequence[Spoken]], now_s: float, width: int) -> RenderableType:
    """All readers of all servers.

    Args:
        servers: Answers by the server's name.
        now_s: The moment, on the servers' clock.
        width: Columns of the terminal.
    """
    room = min(_WIDEST, (width - 1) // len(servers) - _FRAME)
    panels = [
        Panel(
            Group(*(_row(each, each.at(now_s), room) for each in answers)),
            title=name,
            subtitle=Text(counts(answers, now_s)),
            width=room + _FRAME,
        )
        for name, answers in servers.items()
    ]
    legend = Text()
    for doing, meaning in MEANINGS.items():
        colour, sign = LOOKS[doing]
        legend.append(f"{sign} ", colour).append(f"{meaning}   ")
    legend.append("+n ", LOOKS[Doing.reading][0]).append("tokens to read")
    clock = Text(f"{now_s:5.1f} s on the emulated device, at each reader's own pace")
    return Group(clock, Columns(panels, padding=(0, 0)), legend)


def counts(answers: Sequence[Spoken], now_s: float) -> str:
    """How many do what, in words."""
    found = Counter(each.at(now_s).doing for each in answers)
    named = ((found[doing], doing) for doing in MEANINGS)
    return ", ".join(f"{count} {_short(doing)}" for count, doing in named if count)


def _short(doing: Doing) -> str:
    words = {Doing.waiting: "waiting", Doing.reading: "reading", Doing.done: "done"}
    return words.get(doing, "stalled")


def _row(answer: Spoken, seen: SeenWords, width: int) -> Text:
    colour, sign = LOOKS[seen.doing]
    row = Text(no_wrap=True, overflow="crop")
    row.append(f"{sign} ", colour).append(f"{answer.asking.name:<{_NAME - 1}} ", "bold")
    room = width - 2 - _NAME - _BEHIND
    style = "grey62" if seen.doing is Doing.done else ""
    row.append(f"{last_words(seen.text, room):<{room}}", style)
    row.append(f"{_behind(seen):>{_BEHIND}}", colour)
    return row


def last_words(text: str, room: int) -> str:
    """The last words of a text in one line of so many letters."""
    line = " ".join(text.split())
    if len(line) <= room:
        return line
    end = line[len(line) - room + 2 :]
    cut, found, words = end.partition(" ")
    return f"… {words if found else cut}"


def _behind(seen: SeenWords) -> str:
    if seen.doing in (Doing.waiting, Doing.stalled):
        return f"{seen.seconds:.1f} s"
    return f"+{seen.unread}" if seen.unread else ""
