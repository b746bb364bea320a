"""``tokenflow simulate``: how a trace would run on a device under each of several policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.cli import choices
from tokenflow_sgl.cli.checks import output_folder
from tokenflow_sgl.cli.chosen_engine import (
    ChunkedPrefillSize,
    Device,
    HicacheRatio,
    KvTokens,
    LoadEvictOverlap,
    MixedChunk,
    Model,
    PageSize,
    ProfileFile,
    WritePolicy,
    open_engine,
)
from tokenflow_sgl.cli.chosen_trace import (
    Limit,
    Rate,
    Sample,
    SpeedUp,
    TbtSlo,
    TtftSlo,
    Window,
    open_chosen,
)
from tokenflow_sgl.cli.extras import PAGES, RUNS, need
from tokenflow_sgl.cli.failing import failing

if TYPE_CHECKING:
    from tokenflow_sgl.profiles import DeviceProfile
    from tokenflow_sgl.report import Comparison, Figures
    from tokenflow_sgl.sim import EngineOptions, Simulation
    from tokenflow_sgl.sim.sweep import Setting
    from tokenflow_sgl.traces import Trace

_FILE_WIDTH = 110
_MOST_FORESEEN = 5000
"""Most requests of a trace for which the no-stall schedule is computed; takes a few seconds."""
_SERVER = "The server"
_COMPARED = "fcfs,tokenflow"


def simulate(
    trace: Annotated[
        str, typer.Option(help="Trace: PATH, FORMAT:PATH or a workload, with its keys.")
    ],
    device: Device = choices.Device.h200,
    model: Model = choices.Model.llama3_8b,
    policy: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="Policies to compare, separated by commas; the first is the baseline. Known are "
            "fcfs, chunked, priority, vtc, tokenflow, paper, andes, least-slack and round-robin, "
            "and your own as package.module:Class.",
        ),
    ] = _COMPARED,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the runs and the page. Default: simulate-results/TRACE-N.",
            callback=output_folder,
        ),
    ] = None,
    profile: ProfileFile = None,
    kv_tokens: KvTokens = None,
    page_size: PageSize = 1,
    hicache_ratio: HicacheRatio = 2.0,
    hicache_write_policy: WritePolicy = choices.WritePolicy.write_through,
    load_evict_overlap: LoadEvictOverlap = True,
    chunked_prefill_size: ChunkedPrefillSize = None,
    mixed_chunk: MixedChunk = False,
    replicas: Annotated[
        int,
        typer.Option(min=1, help="Number of servers behind a router.", rich_help_panel=_SERVER),
    ] = 1,
    router: Annotated[
        choices.Router,
        typer.Option(help="Which server gets a request.", rich_help_panel=_SERVER),
    ] = choices.Router.least_loaded,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=A,B,C",
            help="Instead of comparing policies, run tokenflow with each value of a parameter "
            "(see docs/flags.md); given several times, with all combinations.",
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Run the sweep on a Ray cluster: RAY_ADDRESS, or this machine's cores.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --sample and of --rate.")] = 0,
    window: Window = None,
    sample: Sample = None,
    speed_up: SpeedUp = None,
    limit: Limit = None,
    rate: Rate = None,
    ttft_slo: TtftSlo = None,
    tbt_slo: TbtSlo = None,
) -> None:
    """Simulate a trace on a device under each policy: a table, and a page with plots.

    Runs SGLang's scheduling in virtual time, with the device's step times and the same policy
    object that the server runs. Needs no GPU and no SGLang, and takes seconds instead of hours.
    """
    need("A simulation", *RUNS, *PAGES)
    console = Console(stderr=True)

    # Only here: the CLI must start without what a simulation needs.
    from tokenflow_sgl.replay import write_run
    from tokenflow_sgl.replay.folder import new_folder
    from tokenflow_sgl.sim import SimulationError, parse_sweep
    from tokenflow_sgl.sim.policies import settings_of

    names = list(dict.fromkeys(policy.split(",")))
    with failing("No simulation"):
        if ray and not sweep:
            raise SimulationError("--ray is for sweeps; allowed is --ray with --sweep")
        if sweep and (replicas > 1 or policy not in (_COMPARED, "tokenflow")):
            raise SimulationError(
                "--sweep varies tokenflow on one server; allowed with it is no other --policy, "
                "and no --replicas"
            )
        settings = parse_sweep(sweep or ())
        chosen = open_chosen(
            trace,
            console,
            seed=seed,
            window=window,
            sample=sample,
            speed_up=speed_up,
            limit=limit,
            rate=rate,
            ttft_slo=ttft_slo,
            tbt_slo=tbt_slo,
        )
        target, options = open_engine(
            device,
            model,
            profile,
            kv_tokens=kv_tokens,
            page_size=page_size,
            hicache_ratio=hicache_ratio,
            hicache_write_policy=hicache_write_policy,
            load_evict_overlap=load_evict_overlap,
            chunked_prefill_size=chunked_prefill_size,
            mixed_chunk=mixed_chunk,
        )
        for name in names:
            settings_of(name, options)
        with new_folder(output, chosen.name, runs=Path("simulate-results")) as folder:
            if sweep:
                _sweep(chosen, target, options, settings, folder, console, ray=ray)
                return
            done = [
                _simulate(chosen, target, options, name, replicas, router, console)
                for name in names
            ]
            for name, simulation in zip(names, done, strict=True):
                write_run(folder / name, simulation.run)
            shown = _judge(done, folder / "report.html", console)
    _print(shown)
    if replicas == 1:
        _print_bounds(chosen, target, options)
    runs = " ".join(str(folder / name) for name in names)
    console.print(
        f"Runs and {folder / 'report.html'} written. All figures: tokenflow report {runs}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _print_bounds(trace: Trace, profile: DeviceProfile, options: EngineOptions) -> None:
    from tokenflow_sgl.sim import bounds, clairvoyant

    if any(request.turn for request in trace.requests):
        return  # when later turns come depends on the answers before them
    limit = bounds(trace, profile, options)
    console = _wide(Console())
    console.print(
        "No scheduler can do better here than "
        f"{limit.effective_throughput:,.0f} effective tokens/s, {limit.token_throughput:,.0f} "
        f"tokens/s, mean TTFT {limit.mean_ttft_s:.3g} s, P99 TTFT {limit.p99_ttft_s:.3g} s, each "
        "by itself.",
        highlight=False,
    )
    if len(trace.requests) <= _MOST_FORESEEN:
        known = clairvoyant(trace, profile, options)
        console.print(
            "A first-come-first-served schedule without stalls that knows all answer lengths has "
            f"a mean TTFT of {known.mean_ttft_s:.3g} s, and {known.p99_ttft_s:.3g} s at P99.",
            highlight=False,
        )


def _simulate(
    trace: Trace,
    profile: DeviceProfile,
    options: EngineOptions,
    policy: str,
    replicas: int,
    router: str,
    console: Console,
) -> Simulation:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from tokenflow_sgl.sim import simulate

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} requests"),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(policy, total=len(trace.requests), now="")

        def observe(now: float, finished: int) -> None:
            progress.update(task, completed=finished, now=f"at {now:,.0f} s")

        return simulate(
            trace,
            profile,
            options,
            policy=policy,
            replicas=replicas,
            router=router,
            observe=observe,
        )


def _sweep(
    trace: Trace,
    profile: DeviceProfile,
    options: EngineOptions,
    settings: Sequence[Setting],
    folder: Path,
    console: Console,
    *,
    ray: bool,
) -> None:
    import pyarrow.parquet as pq
    from rich.progress import Progress

    from tokenflow_sgl.sim import sweep
    from tokenflow_sgl.sim.spread import on_cores, on_ray
    from tokenflow_sgl.sim.sweep_plot import plot_sweep

    places = on_ray() if ray else on_cores()
    with Progress(console=console, transient=True) as progress, places as spread:
        task = progress.add_task("settings", total=len(settings))
        found = sweep(
            trace, profile, options, settings, spread=spread, done=lambda: progress.advance(task)
        )
    pq.write_table(found, folder / "sweep.parquet")
    plot_sweep(found, folder / "sweep.png", f"{trace.name} on {profile.device}: tokenflow")
    table = Table(title=f"{trace.name}, tokenflow: seconds and tokens per second")
    for name in found.column_names:
        table.add_column(name.removesuffix("_s").replace("_", " "), justify="right")
    for row in found.to_pylist():
        table.add_row(*(_cell(value) for value in row.values()))
    _wide(Console()).print(table)
    console.print(f"{folder}: sweep.parquet and sweep.png written.", markup=False, soft_wrap=True)


def _cell(value: float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"


def _wide(console: Console) -> Console:
    """A console that writes whole tables into a file or a pipe."""
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    return console


def _judge(done: list[Simulation], page_path: Path, console: Console) -> Figures | Comparison:
    from tokenflow_sgl.report import compare, figures
    from tokenflow_sgl.report.page import page

    with console.status("judging") as status:
        judged = [figures(simulation.run) for simulation in done]
        shown = judged[0] if len(judged) == 1 else compare(judged[0], judged[1:])
        page_path.write_text(page(shown, status.update), encoding="utf-8")
    return shown


def _print(shown: Figures | Comparison) -> None:
    from tokenflow_sgl.report import Figures
    from tokenflow_sgl.report.terminal import comparison_view, run_view

    _wide(Console()).print(
        run_view(shown) if isinstance(shown, Figures) else comparison_view(shown)
    )
