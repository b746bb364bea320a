"""``tokenflow demo``: stock SGLang against tokenflow, one burst of readers, on this machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tokenflow_sgl.cli.extras import RUNS, need
from tokenflow_sgl.cli.failing import Exit, failing
from tokenflow_sgl.cli.option_checks import output_folder

# A paused reader's KV lies in host memory. Four times the device's holds the whole burst; SGLang's
# own default is twice.
TOKENFLOW_ARGS = ("--scheduler", "tokenflow", "--hicache-ratio", "4")


class SchedulerChoice(StrEnum):
    """Schedulers that stock SGLang can be compared with."""

    tokenflow = "tokenflow"
    default = "default"


def demo(
    scheduler: Annotated[
        SchedulerChoice,
        typer.Option(
            help="Scheduler of the second server. 'default' runs stock SGLang twice, "
            "which shows how much figures differ by chance."
        ),
    ] = SchedulerChoice.tokenflow,
    readers: Annotated[int, typer.Option(min=1, help="Requests in the burst.")] = 56,
    kv_tokens: Annotated[
        int, typer.Option(min=1000, help="KV cache of each server, in tokens.")
    ] = 5000,
    bursts: Annotated[int, typer.Option(min=1, help="Bursts on each server.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first burst.")] = 0,
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            help="Folder for picture, figures and server logs.",
            callback=output_folder,
        ),
    ] = Path("demo-results"),
) -> None:
    """Show on this machine what buffer-aware scheduling does to a burst of readers.

    Starts two real SGLang servers, stock and tokenflow, with a tiny model on the CPU. Sends both
    the same bursts of streaming requests, more than the KV cache holds, one server working at a
    time, and compares when tokens arrive. Takes a few minutes, and neither a GPU nor a download.
    """
    need("The demo", "sglang", "tokenflow_sgl_emulator", "matplotlib", *RUNS)
    console = Console()

    # Only here: the CLI must start without what the demo needs.
    from tokenflow_sgl.demo.run import Contender, DemoConfig, run_demo
    from tokenflow_sgl.demo.workload import BurstConfig

    second = (
        Contender("stock again")
        if scheduler is SchedulerChoice.default
        else Contender(scheduler.value, TOKENFLOW_ARGS)
    )
    config = DemoConfig(
        contenders=(Contender("stock"), second),
        output=output,
        burst=BurstConfig(readers=readers, seed=seed),
        bursts=bursts,
        kv_tokens=kv_tokens,
    )
    with failing("The demo failed"):
        same = run_demo(config, console)
    if not same:
        raise typer.Exit(Exit.failed)
