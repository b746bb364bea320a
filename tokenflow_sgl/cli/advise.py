"""``tokenflow advise``: whether the scheduler helps a trace on a device, and at what cost."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.cli import chosen_engine, chosen_trace
from tokenflow_sgl.cli.extras import PAGES, RUNS, need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import output_file
from tokenflow_sgl.cli.shared_options import shares_options
from tokenflow_sgl.lab.profiles import DEVICES

if TYPE_CHECKING:
    from tokenflow_sgl.lab.sim.study.advice import Advice, AdviceSetup

MANY = 3000
"""Requests from which on a part of the trace is proposed."""
TOLD = 8
"""Runs after which a line says how far it is, where no one watches."""


@dataclass(frozen=True, kw_only=True)
class AdvisedServer(chosen_engine.StudiedServer):
    """The server; what is not asked for is as SGLang chooses it."""

    page_size: int = field(default=1, init=False)
    hicache_ratio: float = field(default=2.0, init=False)
    chunked_prefill_size: int | None = field(default=None, init=False)

    @property
    def ranks(self) -> int:
        """Devices that serve the model together."""
        return 1 if self.profile is not None else DEVICES[self.device].ranks


@dataclass(frozen=True, kw_only=True)
class AdviceOptions:
    """What serves a reader well, and how the advice is shown."""

    goal: Annotated[
        str,
        typer.Option(
            metavar="LIMITS",
            help="What serves a reader well, as METRIC<=SECONDS, separated by commas "
            "(docs/capacity.md).",
        ),
    ] = "ttft<=2,stall<=0.5"
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Also write a page to this file.", callback=output_file),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False


@shares_options
def advise(
    trace: Annotated[
        str, typer.Argument(help="Trace: PATH, FORMAT:PATH or a workload, with its keys.")
    ],
    *,
    shown: AdviceOptions,
    server: AdvisedServer,
    chosen: chosen_trace.TraceChoice,
) -> None:
    """Say whether the scheduler helps this traffic on this device, from what load on, at what cost.

    Simulates the trace at 0.7, 1, 1.4 and 2 times its load, under SGLang's own settings and with
    one flag. A few hundred requests take minutes. Needs no GPU and no SGLang. Ends with 1
    if it helps at none of these loads.
    """
    need("Advice", *RUNS, *PAGES, *server.needs)
    console = Console(stderr=True)

    # Only here: the CLI must start without what a simulation needs.
    from tokenflow_sgl.cli.advice_output import object_of, print_advice
    from tokenflow_sgl.cli.advice_page import advice_page
    from tokenflow_sgl.lab.report.goal import parse_goal
    from tokenflow_sgl.lab.sim.study.advice import AdviceSetup

    with failing("No advice"):
        goal = parse_goal(shown.goal)
        requests = chosen.open(trace, console)
        target, options = server.open()
        classes = chosen_trace.classes_of(chosen.classes)
        setup = AdviceSetup(
            *(requests, target, options, goal, server.ranks, server.known_lengths, classes)
        )
        found = _advise(setup, console)
        if shown.html is not None:
            shown.html.parent.mkdir(parents=True, exist_ok=True)
            shown.html.write_text(advice_page(setup, found), encoding="utf-8")
    if shown.as_json:
        typer.echo(json.dumps(object_of(setup, found), indent=2))
    else:
        print_advice(setup, found)
    if not found.helps:
        fail("It helps this traffic at none of the loads tried.", Exit.failed)


def _advise(setup: AdviceSetup, console: Console) -> Advice:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tokenflow_sgl.lab.sim.study.advice import advise as advise_on
    from tokenflow_sgl.lab.sim.study.own_settings import SETTINGS
    from tokenflow_sgl.lab.sim.study.spread import on_cores

    count, total = len(setup.trace.requests), len(setup.loads) * len(SETTINGS)
    what = f"{count:,} requests, {len(setup.loads)} loads, {len(SETTINGS)} settings"
    part = " A part of the trace is enough: --window 0:600." if count > MANY else ""
    began, ended = time.monotonic(), 0

    def said() -> None:
        nonlocal ended
        ended += 1
        if ended % TOLD == 0 or ended == total:
            seconds = time.monotonic() - began
            console.print(f"{ended} of {total} runs, {seconds:.0f} s", highlight=False)

    if not console.is_terminal or part:
        console.print(f"{what}.{part}", highlight=False, soft_wrap=True)
    if not console.is_terminal:
        with on_cores() as spread:
            return advise_on(setup, spread=spread, done=said)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} of {task.total:.0f} runs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress, on_cores() as spread:
        task = progress.add_task(what, total=total)
        return advise_on(setup, spread=spread, done=lambda: progress.advance(task))
