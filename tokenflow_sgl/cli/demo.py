"""``tokenflow demo``: one burst of readers, stock SGLang beside tokenflow, in virtual time."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.cli.extras import REPLAYS, WEB, need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import output_folder

if TYPE_CHECKING:
    from tokenflow_sgl.lab.demo.run import DemoServer

# A paused reader's KV lies in host memory. Eight times the device's holds the whole burst, and is
# what the paper's machines have; SGLang's own default is twice.
TOKENFLOW_ARGS = ("--scheduler", "tokenflow", "--hicache-ratio", "8")


class SchedulerChoice(StrEnum):
    """Schedulers that stock SGLang can be compared with."""

    tokenflow = "tokenflow"
    default = "default"


def demo(
    scheduler: Annotated[
        SchedulerChoice,
        typer.Option(
            help="Scheduler of the second server. 'default' runs stock SGLang twice: "
            "all figures must be the same."
        ),
    ] = SchedulerChoice.tokenflow,
    readers: Annotated[int, typer.Option(min=1, help="Requests in the burst.")] = 60,
    kv_tokens: Annotated[
        int, typer.Option(min=2000, help="KV cache of each server, in tokens.")
    ] = 12_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the burst.")] = 0,
    text: Annotated[
        bool,
        typer.Option(
            "--text",
            help="Stream a small trained model's words to twelve readers (docs/demo.md); "
            "`tokenflow model smollm2` says what it needs.",
        ),
    ] = False,
    web: Annotated[
        bool,
        typer.Option("--web", help="With --text: also on a page in the browser, of this machine."),
    ] = False,
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            help="Folder for picture, recorded runs and server logs.",
            callback=output_folder,
        ),
    ] = Path("demo-results"),
) -> None:
    """Show what buffer-aware scheduling does to a burst of readers.

    Starts two real SGLang servers, stock and tokenflow, each on an emulated RTX 4090. Sends both
    the same burst of streaming requests, more than the KV cache holds, shows their readers side by
    side while it runs, and compares when tokens arrive, and whether any is missing, doubled or out
    of place (what is in the KV cache does not show in emulated tokens). Time is virtual, so the
    figures are the same on every machine. Takes two minutes on two cores, and neither a GPU nor a
    download. Exits with 1 if an answer differs.
    """
    if web and not text:
        fail("--web shows words: add --text.", Exit.usage)
    need("The demo", "sglang", "tokenflow_sgl_emulator", "matplotlib", *REPLAYS)
    console = Console()

    # Only here: the CLI must start without what the demo needs.
    from tokenflow_sgl.lab.demo.burst import Burst
    from tokenflow_sgl.lab.demo.run import DemoConfig, DemoServer, run_demo

    second = (
        DemoServer("stock again")
        if scheduler is SchedulerChoice.default
        else DemoServer(scheduler.value, TOKENFLOW_ARGS)
    )
    if text:
        _with_words(second, output, console, web=web)
        return
    config = DemoConfig(
        contenders=(DemoServer("stock"), second),
        output=output,
        burst=Burst(readers, kv_tokens, seed),
    )
    with failing("The demo failed"):
        same = run_demo(config, console)
    if not same:
        raise typer.Exit(Exit.failed)


def _with_words(second: DemoServer, output: Path, console: Console, *, web: bool) -> None:
    if web:
        need("--web", *WEB)
    from tokenflow_sgl.lab.demo.run import DemoServer
    from tokenflow_sgl.lab.demo.text_demo import TextDemo, run_text_demo
    from tokenflow_sgl_emulator.trained.shipped import SMOLLM2, converted

    with failing("The demo failed"):
        words = converted(SMOLLM2, "float32")
        both = DemoServer("stock"), second
        same = run_text_demo(TextDemo(both, output, words, web=web), console)
    if not same:
        raise typer.Exit(Exit.failed)
