"""``tokenflow capacity``: streams per second that each scheduler carries, and what that saves."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from tokenflow_sgl.cli import chosen_engine, chosen_trace
from tokenflow_sgl.cli.extras import PAGES, RAY, RUNS, need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import finite, output_folder
from tokenflow_sgl.cli.shared_options import shares_options

if TYPE_CHECKING:
    from tokenflow_sgl.lab.sim.study.capacity_search import CapacitySetup, Carried

PLAIN: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}


@dataclass(frozen=True, kw_only=True)
class PartOfTrace(chosen_trace.TraceChoice):
    """What is selected of a trace whose arrivals the search itself speeds up."""

    speed_up: float | None = field(default=None, init=False)


@dataclass(frozen=True, kw_only=True)
class CapacityOptions:
    """The options of a search for capacity: what to keep, under which policies, and how."""

    goal: Annotated[
        str,
        typer.Option(
            metavar="LIMITS",
            help="What a stream has to keep, as METRIC<=SECONDS, separated by commas: ttft (time "
            "to first token), ttfvt (to the first one behind the reasoning), stall (longest "
            "stall), stalled (all stalls together), itl (mean gap between tokens), tbt (P99 of "
            "them), e2e (time to the last token). A stream whose answer does not end within the "
            "run does not keep it.",
        ),
    ] = "ttft<=2,stall<=0.5"
    share: Annotated[
        float,
        typer.Option(
            help="Share of the streams that have to meet the goal, above 0, at most 1.",
            callback=finite,
        ),
    ] = 0.99
    policy: chosen_engine.Policies = chosen_engine.DEFAULT_POLICIES
    draws: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            help="Draws of a workload, with seeds one apart, whose streams are counted together.",
        ),
    ] = 1
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for capacity.json and capacity.png. Default: capacity-results/TRACE-N.",
            callback=output_folder,
        ),
    ] = None
    whole: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Simulate rates that fail to their end, too, so that the picture shows the share "
            "of streams that meet the goal there. Takes many times as long; the rate found is the "
            "same.",
        ),
    ] = False
    ray: chosen_engine.OnRay = False

    @property
    def policies(self) -> list[str]:
        """Names of the policies, each once, the baseline first."""
        return list(dict.fromkeys(self.policy.split(",")))

    def specs(self, trace: str) -> list[str]:
        """The trace and further draws of it, as many as are wanted.

        Raises:
            SimulationError: More than one of a trace that has no draws.
        """
        from tokenflow_sgl.lab.sim import SimulationError
        from tokenflow_sgl.lab.traces.spec import other_draw

        found = [trace, *(other_draw(trace, number) for number in range(1, self.draws))]
        known = [spec for spec in found if spec is not None]
        if len(known) < len(found):
            raise SimulationError(
                f"draws is {self.draws}; allowed for a file is 1, for it is one draw"
            )
        return known


@shares_options
def capacity(
    trace: chosen_trace.Spec,
    *,
    search: CapacityOptions,
    server: chosen_engine.StudiedServer,
    part: PartOfTrace,
) -> None:
    """Search the highest arrival rate that one server carries under each policy, by simulation.

    The trace's arrivals are sped up or slowed down, until the wanted share of streams just meets
    the goal. Prints a table and what it saves in GPUs, and draws the share by rate. Needs no GPU
    and no SGLang.
    """
    need("A search", *RUNS, *PAGES, *server.needs, *(RAY if search.ray else ()))
    console = Console(stderr=True)

    # Only here: the CLI must start without what a simulation needs.
    from tokenflow_sgl.cli.capacity_output import object_of, print_capacity, verdict
    from tokenflow_sgl.lab.report.goal import parse_goal
    from tokenflow_sgl.lab.runs import new_folder
    from tokenflow_sgl.lab.sim.schedulers.by_name import settings_of
    from tokenflow_sgl.lab.sim.study.capacity_plot import plot_capacity
    from tokenflow_sgl.lab.sim.study.capacity_search import CapacitySetup

    with failing("No search"):
        wanted = parse_goal(search.goal)
        specs = search.specs(trace)
        target, options = server.open()
        for name in search.policies:
            settings_of(name, options)
        chosen = tuple(part.open(spec, console) for spec in specs)
        setup = CapacitySetup(
            chosen,
            target,
            options,
            wanted,
            search.share,
            server.known_lengths,
            chosen_trace.classes_of(part.classes),
            search.whole,
        )
        with new_folder(search.output, chosen[0].name, runs=Path("capacity-results")) as folder:
            found = _search(setup, search.policies, console, ray=search.ray)
            what = json.dumps(object_of(setup, found), indent=2)
            (folder / "capacity.json").write_text(what + "\n", encoding="utf-8")
            known = "known lengths" if server.known_lengths else "unknown lengths"
            share = f"{100 * search.share:g}% with {wanted}"
            title = f"{chosen[0].name} on {target.device}, {known}: {share}"
            plot_capacity(found, search.share, folder / "capacity.png", title)
    print_capacity(found, title)
    console.print(f"{folder}: capacity.json and capacity.png written.", **PLAIN)
    if not any(each.best for each in found):
        seen = [tried.share for each in found for tried in each.tried if tried.whole]
        most = f"; the most at any rate are {100 * max(seen):.3g}%" if seen else ""
        fail(
            f"No policy meets {wanted} for {100 * search.share:g}% of the streams at the lowest "
            f"rates tried{most}.",
            Exit.failed,
        )
    for sentence in verdict(setup, found):
        Console().print(sentence, **PLAIN)


def _search(
    setup: CapacitySetup, names: list[str], console: Console, *, ray: bool
) -> list[Carried]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tokenflow_sgl.lab.sim.study.capacity_search import capacity
    from tokenflow_sgl.lab.sim.study.spread import on_cores, on_ray

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f} rates, {task.fields[between]} streams/s"),
        TimeElapsedColumn(),
    )
    began = time.monotonic()

    def said(name: str, low: float, high: float) -> None:
        tried[name] += 1
        console.print(
            f"{name}: {tried[name]} rates tried, between {low:.3g} and {high:.3g} streams/s, "
            f"{time.monotonic() - began:.0f} s",
            **PLAIN,
        )

    if not console.is_terminal:
        tried = dict.fromkeys(names, 0)
        console.print(f"searching the rate that {', '.join(names)} carry ...", **PLAIN)
        with on_ray() if ray else on_cores() as spread:
            return capacity(setup, names, spread=spread, done=said)
    with Progress(*columns, console=console, transient=True) as progress:
        # How many rates it takes is not known before.
        tasks = {name: progress.add_task(name, total=None, between="?") for name in names}

        def done(name: str, low: float, high: float) -> None:
            progress.update(tasks[name], advance=1, between=f"{low:.3g} to {high:.3g}")

        with on_ray() if ray else on_cores() as spread:
            return capacity(setup, names, spread=spread, done=done)
