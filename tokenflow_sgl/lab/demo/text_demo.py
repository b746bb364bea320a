"""The demo with words: two servers stream a trained model's answers to twelve readers."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.metadata
import io
import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tokenflow_sgl.lab.demo.dialogue import KV_TOKENS, READERS
from tokenflow_sgl.lab.demo.listening import WordsListener
from tokenflow_sgl.lab.demo.reader_rows import counts, picture
from tokenflow_sgl.lab.demo.run import DEVICE, MODEL, DemoServer
from tokenflow_sgl.lab.demo.server import SglangServer, running
from tokenflow_sgl.lab.demo.spoken import Spoken
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.replay.steady import allow_many_files, new_event_loop

if TYPE_CHECKING:
    from tokenflow_sgl.lab.demo.words_page import WordsPage

FRAME_S = 0.1
"""Seconds between two pictures."""
LINE_S = 10.0
"""Seconds between two lines where it is no terminal."""
PICTURE = "words.svg"
FROM_ELSEWHERE = re.compile(r',\s*url\("https?://[^)]*\) format\("\w+"\)')
"""Fonts that Rich would have a picture load from another host."""
PICTURE_COLUMNS = 120


@dataclass(frozen=True, slots=True)
class TextDemo:
    """What is run.

    Attributes:
        contenders: The two servers; names differ.
        output: Folder for the picture, the answers and the servers' logs.
        words: Folder of the trained model.
        kv_tokens: KV cache of each server, tokens.
        launcher: Starts `tokenflow_sgl_emulator.serve`.
        pace: Seconds of reading for each second that the last part is shown, when all has come;
            infinite: it is not shown.
        web: It is shown on a page in the browser, too.
    """

    contenders: tuple[DemoServer, DemoServer]
    output: Path
    words: Path
    kv_tokens: int = KV_TOKENS
    launcher: tuple[str, ...] = (sys.executable, "-m", "tokenflow_sgl_emulator.serve")
    pace: float = 1.0
    web: bool = False


class _View:
    """Shows all readers at the latest moment that both servers have reached."""

    def __init__(self, console: Console, live: Live | None, page: WordsPage | None) -> None:
        self._console, self._live, self._page = console, live, page
        self.servers: dict[str, WordsListener] = {}
        self._shown = self._told = time.monotonic()

    def now_s(self) -> float:
        """That moment; where both are at their ends, that of the last word."""
        reached = min(each.reached_s for each in self.servers.values())
        return reached if math.isfinite(reached) else self.came_s()

    def came_s(self) -> float:
        """When the last word has come."""
        return max(
            (
                word.times[-1]
                for each in self.servers.values()
                for word in each.answers
                if word.times
            ),
            default=0.0,
        )

    def changed(self) -> None:
        """Show it, if the last picture is old enough."""
        now = time.monotonic()
        if self.moves and now - self._shown >= FRAME_S:
            self.show(self.now_s())
            self._shown = now
        if self._live is None and now - self._told >= LINE_S:
            self._told = now
            self._console.print(self._line(self.now_s()), highlight=False, soft_wrap=True)

    @property
    def moves(self) -> bool:
        """Whether somebody sees every moment of it."""
        return self._live is not None or self._page is not None

    def show(self, now_s: float) -> None:
        """A moment, where it moves."""
        if self._page is not None:
            self._page.show(self.answers(), now_s)
        if self._live is not None:
            drawn = picture(self.answers(), now_s, self._console.width)
            self._live.update(drawn, refresh=True)

    def answers(self) -> dict[str, Sequence[Spoken]]:
        """By server."""
        return {name: each.answers for name, each in self.servers.items()}

    def _line(self, now_s: float) -> str:
        sides = (f"{name}: {counts(said, now_s)}" for name, said in self.answers().items())
        return f"{now_s:6.1f} s  " + " | ".join(sides)


def run_text_demo(config: TextDemo, console: Console) -> bool:
    """Run the demo and show its results; return whether all answers were the same.

    Raises:
        ServerError: A server did not start.
        WordsError: A server failed to answer.
    """
    config.output.mkdir(parents=True, exist_ok=True)
    _introduce(config, console)
    said = _listen(config, console)
    answers = {
        name: [
            {
                "reader": each.asking.name,
                "question": each.asking.question,
                "answer": each.text,
                "asked_s": each.asked_s,
                "tokens": each.ids,
                "times_s": each.times.tolist(),
            }
            for each in spoken
        ]
        for name, spoken in said.items()
    }
    text = json.dumps(answers, indent=2, ensure_ascii=False)
    (config.output / "words.json").write_text(text + "\n")
    first, second = said.values()
    same = sum(one.ids == two.ids for one, two in zip(first, second, strict=True))
    console.print(_table(said))
    console.print(
        f"\n[{'green' if same == len(first) else 'bold red'}]{same} of {len(first)} answers have "
        "the same tokens on both servers.[/] The KV cache is a real one: wrong KV would say "
        "something else.\n"
    )
    one = second[0]
    console.print(f"[bold]{one.asking.name}:[/] {one.asking.question}", highlight=False)
    console.print(f"{one.text.strip()}\n", highlight=False, markup=False)
    save_picture(config.output / PICTURE, said)
    console.print(
        f"Picture: {config.output / PICTURE}. All answers: {config.output / 'words.json'}",
        highlight=False,
        soft_wrap=True,
    )
    return same == len(first)


def _introduce(config: TextDemo, console: Console) -> None:
    rates = sorted(each.rate for each in READERS)
    first, second = (contender.name for contender in config.contenders)
    console.print(
        f"[bold]{len(READERS)} readers ask {config.words.name.partition('-')[0]} within half a "
        f"second[/] and read {rates[0]:g} to {rates[-1]:g} tokens per second. Two real SGLang "
        f"{importlib.metadata.version('sglang')} servers, {first} and {second}, compute every word "
        f"on this CPU, which takes some minutes. Time is virtual: each step counts what {MODEL} "
        f"takes on an {DEVICE}. KV of {config.kv_tokens:,} tokens fits, less than is needed.\n",
        highlight=False,
    )


def _listen(config: TextDemo, console: Console) -> Mapping[str, Sequence[Spoken]]:
    layers = json.loads((config.words / "config.json").read_text())["num_hidden_layers"]
    profile = config.output / f"{DEVICE}-{MODEL}-{layers}-layers.json"
    # Of another model: what its layers take and copy is shared among those that compute.
    dataclasses.replace(load_profile(DEVICE, MODEL), layers=layers).save(profile)
    emulated = ("--profile", str(profile), "--virtual-time", "--words", str(config.words), "--")
    servers = [
        SglangServer(
            None,
            (
                *("--max-total-tokens", str(config.kv_tokens), "--incremental-streaming-output"),
                *("--sleep-on-idle", *contender.args),
            ),
            launcher=(*config.launcher, *emulated),
            log_path=config.output / f"words-{contender.name.replace(' ', '-')}.log",
            env={"HF_HUB_OFFLINE": "1"},
        )
        for contender in config.contenders
    ]

    async def both(view: _View) -> None:
        view.servers = {
            each.name: WordsListener(READERS, view.changed) for each in config.contenders
        }
        pairs = zip(view.servers.values(), servers, strict=True)
        await asyncio.gather(*(listener.listen(at.url) for listener, at in pairs))

    allow_many_files()
    with (
        _page(config, console) as page,
        _started(servers, console),
        _view(console, page) as view,
    ):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(both(view))
        _read_on(view, config.pace)
        return view.answers()


@contextmanager
def _page(config: TextDemo, console: Console) -> Iterator[WordsPage | None]:
    """The page in the browser meanwhile, if it is asked for."""
    if not config.web:
        yield None
        return
    # Only here: a page needs what the demo itself does not.
    from tokenflow_sgl.lab.demo.words_page import words_page

    with words_page() as (page, url):
        console.print(f"Open {url} in a browser on this machine.\n", highlight=False)
        yield page


@contextmanager
def _started(servers: Sequence[SglangServer], console: Console) -> Iterator[None]:
    with console.status("starting both servers") as status, running(servers):
        status.stop()
        yield


def _read_on(view: _View, pace: float) -> None:
    """All words are there; the readers go on at their pace."""
    if not view.moves or math.isinf(pace):
        return
    now_s = view.now_s()
    last = max(each.read_until_s for said in view.answers().values() for each in said)
    while now_s < last:
        view.show(now_s)
        time.sleep(FRAME_S)
        now_s += FRAME_S * pace


@contextmanager
def _view(console: Console, page: WordsPage | None) -> Iterator[_View]:
    if not console.is_terminal:
        yield _View(console, None, page)
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield _View(console, live, page)


def telling_moment(said: Mapping[str, Sequence[Spoken]]) -> float:
    """When the servers differ most: the last reader of the quicker one has the first word."""
    return min(max(each.times[0] for each in spoken) for spoken in said.values())


def save_picture(path: Path, said: Mapping[str, Sequence[Spoken]]) -> None:
    """What a terminal shows at the moment that tells most, as SVG."""
    console = Console(record=True, width=PICTURE_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(picture(said, telling_moment(said), PICTURE_COLUMNS))
    drawn = console.export_svg(title="tokenflow demo --text", unique_id="words")
    path.write_text(FROM_ELSEWHERE.sub("", drawn), encoding="utf-8")


def _table(said: Mapping[str, Sequence[Spoken]]) -> Table:
    table = Table(show_edge=False)
    table.add_column("")
    for name in said:
        table.add_column(name, justify="right")
    rows: dict[str, Callable[[Sequence[Spoken]], float]] = {
        "first word after, mean": lambda each: _mean([one.first_after_s for one in each]),
        "first word after, latest": lambda each: max(one.first_after_s for one in each),
        "stalls, all readers together": lambda each: sum(one.stalled_s for one in each),
        "all has been read after": lambda each: max(one.read_until_s for one in each),
    }
    for title, value in rows.items():
        table.add_row(title, *(f"{value(each):.2f} s" for each in said.values()))
    return table


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
