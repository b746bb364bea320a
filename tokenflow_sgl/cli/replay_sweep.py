"""The options of ``tokenflow replay`` that make a sweep of it, and the sweep on a console."""

from __future__ import annotations

import asyncio
import math
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.cli.failing import Exit, fail

if TYPE_CHECKING:
    from tokenflow_sgl.lab.replay import ReplayOptions, Target
    from tokenflow_sgl.lab.replay.sweep import SweepPlan
    from tokenflow_sgl.lab.report.load_sweep import LoadSweep, Measured
    from tokenflow_sgl.lab.traces import Trace

_SWEEP = "Sweep"
_FASTEST, _SLOWEST = 1e6, 1e-6
DEFAULT_GOAL = "ttft<=2,stall<=0.5"


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """The options that make a sweep of a replay."""

    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="A run for each number, with so many requests under way at any time: the next "
            "one is sent when one ends. The trace's times are not used.",
            rich_help_panel=_SWEEP,
        ),
    ] = None
    rate_sweep: Annotated[
        str | None,
        typer.Option(
            metavar="R,R,...",
            help="A run for each rate, in requests per second: Poisson arrivals, drawn from "
            "--seed, instead of the trace's.",
            rich_help_panel=_SWEEP,
        ),
    ] = None
    repeat: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            metavar="N",
            help="Runs of each point, with other seeds; figures get 95 % confidence intervals. "
            "Default: 1.",
            rich_help_panel=_SWEEP,
        ),
    ] = None
    goal: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LIMITS",
            help="Count the requests per second that keep it (goodput), as in tokenflow capacity; "
            f"may be given several times. Default: {DEFAULT_GOAL}.",
            rich_help_panel=_SWEEP,
        ),
    ] = None
    gpus: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="GPUs that the server has, for tokens/s per GPU. Default: what it says.",
            rich_help_panel=_SWEEP,
        ),
    ] = None

    def plan(self) -> SweepPlan | None:
        """What is swept; None: nothing is.

        Raises:
            BadParameter: An option cannot be meant, or not with the others; it is named.
            ReportError: A goal is none.
        """
        if self.concurrency is None and self.rate_sweep is None:
            self._refuse_others()
            return None
        if self.concurrency is not None and self.rate_sweep is not None:
            raise typer.BadParameter(
                f"--concurrency {self.concurrency} and --rate-sweep {self.rate_sweep} exclude each "
                "other: give one of them"
            )
        from tokenflow_sgl.lab.replay.sweep import SweepPlan
        from tokenflow_sgl.lab.report.goal import parse_goal
        from tokenflow_sgl.lab.report.load_sweep import LoadKind

        if self.concurrency is not None:
            kind, loads = LoadKind.concurrency, _numbers(self.concurrency)
        else:
            kind, loads = LoadKind.rate, _rates(self.rate_sweep or "")
        goals = {str(goal): goal for goal in map(parse_goal, self.goal or [DEFAULT_GOAL])}
        return SweepPlan(
            kind=kind,
            loads=loads,
            repeats=self.repeat or 1,
            goals=tuple(goals.values()),
            gpus=self.gpus,
        )

    def _refuse_others(self) -> None:
        for name in ("repeat", "goal", "gpus"):
            value = getattr(self, name)
            if value:
                shown = " ".join(value) if isinstance(value, list) else value
                raise typer.BadParameter(
                    f"--{name} {shown} is for a sweep: give --concurrency or --rate-sweep, too"
                )


def _numbers(text: str) -> tuple[float, ...]:
    allowed = "whole numbers of at least 1, each once, as in 1,8,64"
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    return _loads("--concurrency", text, found, allowed, good=all(each >= 1 for each in found))


def _rates(text: str) -> tuple[float, ...]:
    allowed = f"requests per second from {_SLOWEST:g} to {_FASTEST:g}, each once, as in 0.5,1,2"
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    good = all(_SLOWEST <= each <= _FASTEST for each in found)
    return _loads("--rate-sweep", text, found, allowed, good=good)


def _loads(
    option: str, text: str, found: list[int] | list[float], allowed: str, *, good: bool
) -> tuple[float, ...]:
    # By their names in files, which have six digits.
    if not found or not good or len({f"{each:g}" for each in found}) < len(found):
        raise typer.BadParameter(f"{option} is {text!r}; allowed are {allowed}")
    return tuple(map(float, found))


def run_sweep(
    trace: Trace,
    url: str,
    api_key: str | None,
    options: ReplayOptions,
    plan: SweepPlan,
    folder: Path,
) -> LoadSweep:
    """Sweep on the console: a line before and after each run, and how it goes meanwhile."""
    from tokenflow_sgl.lab.replay import find_target
    from tokenflow_sgl.lab.replay.live import live_view
    from tokenflow_sgl.lab.replay.steady import allow_many_files, new_event_loop
    from tokenflow_sgl.lab.replay.sweep import SweepControl, sweep

    console = Console()

    async def main() -> LoadSweep:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()

        def interrupted() -> None:
            loop.remove_signal_handler(signal.SIGINT)  # the next one raises, as usual
            _say(console, "Stopping the sweep. Ctrl-C again quits without writing this run.")
            stop.set()

        loop.add_signal_handler(signal.SIGINT, interrupted)
        _say(
            console,
            f"{len(trace.requests):,} requests of {trace.name} to {url}, "
            f"{len(plan.loads)} points, {plan.repeats * len(plan.loads)} runs",
        )
        with live_view(console) as view:

            def begins(load: float, repeat: int, target: Target) -> None:
                again = f", {repeat + 1} of {plan.repeats}" if plan.repeats > 1 else ""
                view.restart()
                _say(console, f"{plan.kind.text(load)}{again} ...")

            def ends(load: float, found: Measured) -> None:
                _say(console, f"{plan.kind.text(load)}: {_outcome(found)}")

            control = SweepControl(
                find=lambda: find_target(url, api_key=api_key),
                stop=stop,
                begins=begins,
                ends=ends,
                observe=view.show,
            )
            return await sweep(trace, options, plan, folder, control)

    allow_many_files()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main())


def finish_sweep(found: LoadSweep, folder: Path) -> None:
    """Draw and print a sweep, and exit with what came of it.

    Raises:
        Exit: Interrupted, or a point is invalid or missing.
    """
    from tokenflow_sgl.cli.wide_output import table_console
    from tokenflow_sgl.lab.report.pareto import plot_pareto
    from tokenflow_sgl.lab.report.sweep_view import print_sweep

    plot_pareto([found], folder / "pareto.png")
    print_sweep(found, table_console())
    _say(
        Console(),
        f"Written to {folder}/: sweep.json, sweep.csv, pareto.png and the runs. Beside another "
        f"sweep: tokenflow report {folder} OTHER --plot both.png",
    )
    if found.interrupted:
        raise typer.Exit(Exit.interrupted)
    if found.ended_early or any(each.invalid for each in found.points):
        fail("The sweep is not valid as a whole: its first lines say why.", Exit.invalid)


def _outcome(found: Measured) -> str:
    from tokenflow_sgl.lab.report.text import number

    state = "INVALID, " if found.invalid else "interrupted, " if found.interrupted else ""
    parts = [
        f"{name} {number(value)} {unit}"
        for name, key, unit in (
            ("TTFT mean", "ttft_mean_s", "s"),
            ("TBT P99", "tbt_p99_s", "s"),
            ("output", "tokens_per_s", "tokens/s"),
        )
        if math.isfinite(value := found.figures[key])
    ]
    return state + ", ".join(parts or ["nothing was measured"])


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
