"""What each reader sees on two servers, side by side at one moment, as a page in the browser."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tokenflow_sgl.lab.demo.reader_rows import counts, last_words
from tokenflow_sgl.lab.demo.spoken import Doing, SeenWords, Spoken
from tokenflow_sgl.lab.observe.live import serving

FILES = Path(__file__).parent / "files"
HOST = "127.0.0.1"
INTERVAL_S = 0.25
"""Seconds after which the page asks again."""
MOST_LETTERS = 90
"""Of what somebody has read: two lines on a phone."""
TONES = {
    Doing.waiting: "wait",
    Doing.reading: "reads",
    Doing.stalled: "bad",
    Doing.done: "good",
    Doing.absent: "",
}


@dataclass(frozen=True, slots=True)
class ReaderRow:
    """One reader: the mark's tone, the name, what they do, and the last that they have read."""

    tone: str
    name: str
    state: str
    text: str


@dataclass(frozen=True, slots=True)
class WordsSide:
    """One server: its name, how many readers do what, and each of them."""

    name: str
    counts: str
    rows: Sequence[ReaderRow]


@dataclass(frozen=True, slots=True)
class WordsMoment:
    """All that the page shows; `verdict` comes first, and `note` says when that was."""

    verdict: str
    note: str
    sides: Sequence[WordsSide]


BEFORE = WordsMoment("Both servers are starting", "Twelve readers are about to ask them.", ())


def moment(servers: Mapping[str, Sequence[Spoken]], now_s: float) -> WordsMoment:
    """All readers of all servers.

    Args:
        servers: Answers by the server's name.
        now_s: The moment, on the servers' clock.
    """
    have = {
        name: sum(bool(each.at(now_s).text) for each in answers)
        for name, answers in servers.items()
    }
    number = max(map(len, servers.values()), default=0)
    told = ", ".join(f"{name} {some}" for name, some in have.items())
    sides = [
        WordsSide(name, counts(answers, now_s), [_row(each, each.at(now_s)) for each in answers])
        for name, answers in servers.items()
    ]
    note = f"{now_s:.1f} s on the emulated device, at each reader's own pace"
    return WordsMoment(f"Have words to read, of {number} readers: {told}", note, sides)


def _row(answer: Spoken, seen: SeenWords) -> ReaderRow:
    return ReaderRow(
        TONES[seen.doing], answer.asking.name, _state(seen), last_words(seen.text, MOST_LETTERS)
    )


def _state(seen: SeenWords) -> str:
    if seen.doing is Doing.waiting:
        return f"waits for {seen.seconds:.1f} s"
    if seen.doing is Doing.stalled:
        return f"stalled for {seen.seconds:.1f} s"
    if seen.doing is Doing.reading:
        return f"reads, {seen.unread} more to read" if seen.unread else "reads"
    return seen.doing.value


class WordsPage:
    """The page: what it shows is set in one thread, and served in another."""

    def __init__(self) -> None:
        self._moment = BEFORE
        self._template = serving.template(FILES, "words.html.j2")

    def show(self, servers: Mapping[str, Sequence[Spoken]], now_s: float) -> None:
        """From now on it shows this; see `moment`."""
        self._moment = moment(servers, now_s)

    async def text(self) -> str:
        """The page as it is now."""
        return self._template.render(interval=INTERVAL_S, moment=self._moment)


@contextmanager
def words_page() -> Iterator[tuple[WordsPage, str]]:
    """Serve a page on a free port of this machine meanwhile; gives it and its URL.

    Raises:
        FailedError: No port can be had.
    """
    page, opened = WordsPage(), Future[str]()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        try:
            async with serving.listening(serving.application(page.text, HOST), HOST, 0) as url:
                opened.set_result(url)
                await over.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)  # else who waits for the address waits for ever

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    try:
        yield page, opened.result()
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()
