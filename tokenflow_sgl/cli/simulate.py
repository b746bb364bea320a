"""``tokenflow simulate``: how a trace would run on a device under each of several policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.choices import Router
from tokenflow_sgl.cli import chosen_engine, chosen_trace
from tokenflow_sgl.cli.extras import PAGES, RAY, RUNS, need
from tokenflow_sgl.cli.failing import failing
from tokenflow_sgl.cli.option_checks import output_folder
from tokenflow_sgl.cli.shared_options import shares_options
from tokenflow_sgl.cli.simulate_output import (
    judge,
    print_bounds,
    print_figures,
    print_notes,
    print_storage,
    print_sweep,
)
from tokenflow_sgl.cli.wide_output import Everything

if TYPE_CHECKING:
    from tokenflow_sgl.lab.sim import Simulation
    from tokenflow_sgl.lab.sim.study.sweep import Setting, Setup

_SERVER = "The server"


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The options that say what is compared on which device, and where the runs are written."""

    device: chosen_engine.Device = chosen_engine.DEFAULT_DEVICE
    model: chosen_engine.Model = chosen_engine.DEFAULT_MODEL
    policy: chosen_engine.Policies = chosen_engine.DEFAULT_POLICIES
    tuning: chosen_engine.TuningFile = None
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the runs and the page. Default: simulate-results/TRACE-N.",
            callback=output_folder,
        ),
    ] = None

    @property
    def names(self) -> list[str]:
        """Names of the policies to compare, each once, the baseline first."""
        return list(dict.fromkeys(self.policy.split(",")))


@dataclass(frozen=True, kw_only=True)
class Fleet(chosen_engine.SimulatedServer):
    """The options of the servers, of which there may be several behind a router."""

    known_lengths: chosen_engine.KnownLengths = False
    replicas: Annotated[
        int,
        typer.Option(min=1, help="Number of servers behind a router.", rich_help_panel=_SERVER),
    ] = 1
    router: Annotated[
        Router,
        typer.Option(help="Which server gets a request.", rich_help_panel=_SERVER),
    ] = Router.least_loaded


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The options of a sweep."""

    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Instead of comparing policies, run tokenflow with each value of a parameter "
            "(see docs/flags.md); given several times, with all combinations.",
        ),
    ] = None
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Run the sweep on a Ray cluster: RAY_ADDRESS, or this machine's cores.",
        ),
    ] = False

    def settings(self, compared: Compared, fleet: Fleet) -> Sequence[Setting]:
        """All that are run; without a sweep one that changes nothing.

        Raises:
            SimulationError: A text is no axis of a sweep, or other options exclude it.
        """
        from tokenflow_sgl.lab.sim import SimulationError
        from tokenflow_sgl.lab.sim.study.sweep import parse_sweep

        if self.ray and not self.sweep:
            raise SimulationError("--ray is for sweeps; allowed is --ray with --sweep")
        ours = compared.policy in (chosen_engine.DEFAULT_POLICIES, "tokenflow")
        if self.sweep and (fleet.replicas > 1 or not ours):
            raise SimulationError(
                "--sweep varies tokenflow on one server; allowed with it is no other --policy, "
                "and no --replicas"
            )
        return parse_sweep(self.sweep or ())


@shares_options
def simulate(
    trace: chosen_trace.Spec,
    *,
    compared: Compared,
    fleet: Fleet,
    study: Sweep,
    everything: Everything = False,
    chosen: chosen_trace.TraceWithSlos,
) -> None:
    """Simulate a trace on a device under each policy: a table, and a page with plots.

    Runs SGLang's scheduling in virtual time, with the device's step times and the same policy
    object that the server runs. Needs no GPU and no SGLang, and takes seconds instead of hours.
    """
    times = chosen_engine.needed_for_times(compared.device, fleet.profile)
    need("A simulation", *RUNS, *PAGES, *times, *(RAY if study.ray else ()))
    console = Console(stderr=True)

    # Only here: the CLI must start without what a simulation needs.
    from tokenflow_sgl.lab.runs import new_folder, write_run
    from tokenflow_sgl.lab.sim.schedulers.by_name import settings_of
    from tokenflow_sgl.lab.sim.study.sweep import Setup

    with failing("No simulation"):
        settings = study.settings(compared, fleet)
        config = chosen_engine.tuned_config(compared.tuning, console)
        requests = chosen.open(trace, console)
        target, options = fleet.open(compared.device, compared.model)
        for name in compared.names:
            settings_of(name, options)
        classes = chosen_trace.classes_of(chosen.classes)
        setup = Setup(requests, target, options, fleet.known_lengths, classes, config)
        with new_folder(compared.output, requests.name, runs=Path("simulate-results")) as folder:
            if study.sweep:
                _sweep(setup, settings, folder, console, ray=study.ray)
                return
            done = [_simulate(name, setup, fleet, console) for name in compared.names]
            for name, simulation in zip(compared.names, done, strict=True):
                write_run(folder / name, simulation.run)
            shown = judge(done, folder / "report.html", console)
    print_figures(shown, everything=everything)
    print_notes(done)
    print_storage(done)
    if fleet.replicas == 1:
        print_bounds(requests, target, options)
    runs = " ".join(str(folder / name) for name in compared.names)
    console.print(
        f"Runs and {folder / 'report.html'} written. All figures: tokenflow report {runs}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _simulate(policy: str, setup: Setup, fleet: Fleet, console: Console) -> Simulation:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tokenflow_sgl.lab.sim import simulate

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} requests"),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(policy, total=len(setup.trace.requests), now="")

        def observe(now: float, finished: int) -> None:
            progress.update(task, completed=finished, now=f"at {now:,.0f} s")

        return simulate(
            setup.trace,
            setup.profile,
            setup.options,
            policy=policy,
            config=setup.config,
            replicas=fleet.replicas,
            router=fleet.router,
            known_lengths=setup.known_lengths,
            classes=setup.classes,
            observe=observe,
        )


def _sweep(
    setup: Setup,
    settings: Sequence[Setting],
    folder: Path,
    console: Console,
    *,
    ray: bool,
) -> None:
    import pyarrow.parquet as pq
    from rich.progress import Progress

    from tokenflow_sgl.lab.sim.study.spread import on_cores, on_ray
    from tokenflow_sgl.lab.sim.study.sweep import sweep
    from tokenflow_sgl.lab.sim.study.sweep_plot import plot_sweep

    places = on_ray() if ray else on_cores()
    with Progress(console=console, transient=True) as progress, places as spread:
        task = progress.add_task("settings", total=len(settings))
        found = sweep(setup, settings, spread=spread, done=lambda: progress.advance(task))
    name = setup.trace.name + (", known lengths" if setup.known_lengths else "")
    pq.write_table(found, folder / "sweep.parquet")
    plot_sweep(found, folder / "sweep.png", f"{name} on {setup.profile.device}: tokenflow")
    print_sweep(found, f"{name}, tokenflow: seconds and tokens per second")
    console.print(f"{folder}: sweep.parquet and sweep.png written.", markup=False, soft_wrap=True)
