"""``tokenflow simulate``: how a trace would run on a device under each of several policies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.choices import (
    IoBackend,
    MemLayout,
    PrefetchPolicy,
    Restoring,
    Router,
    StorageWrites,
    WritePolicy,
)
from tokenflow_sgl.cli import chosen_engine, chosen_trace, storage_options
from tokenflow_sgl.cli.extras import PAGES, RAY, RUNS, need
from tokenflow_sgl.cli.failing import failing
from tokenflow_sgl.cli.option_checks import output_folder
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
    from tokenflow_sgl.lab.profiles import DeviceProfile
    from tokenflow_sgl.lab.sim import EngineOptions, Simulation
    from tokenflow_sgl.lab.sim.study.sweep import Setting, Setup
    from tokenflow_sgl.lab.traces import Trace
    from tokenflow_sgl.qos.classes import QosClasses

_SERVER = "The server"


def simulate(
    trace: chosen_trace.Spec,
    device: chosen_engine.Device = chosen_engine.DEFAULT_DEVICE,
    model: chosen_engine.Model = chosen_engine.DEFAULT_MODEL,
    policy: chosen_engine.Policies = chosen_engine.DEFAULT_POLICIES,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder for the runs and the page. Default: simulate-results/TRACE-N.",
            callback=output_folder,
        ),
    ] = None,
    profile: chosen_engine.ProfileFile = None,
    kv_tokens: chosen_engine.KvTokens = None,
    page_size: chosen_engine.PageSize = 1,
    sliding_window: chosen_engine.SlidingWindow = 0,
    swa_full_tokens_ratio: chosen_engine.SwaRatio = 0.8,
    hicache_ratio: chosen_engine.HicacheRatio = 2.0,
    hicache_write_policy: chosen_engine.HostWrites = WritePolicy.write_through,
    hicache_io_backend: chosen_engine.IoBackends = IoBackend.kernel,
    hicache_mem_layout: chosen_engine.MemLayouts = MemLayout.page_first,
    load_evict_overlap: chosen_engine.LoadEvictOverlap = True,
    storage_gbps: storage_options.StorageGbps = 0.0,
    storage_latency_us: storage_options.StorageLatency = 1000.0,
    storage_writes: storage_options.StorageCopies = StorageWrites.free,
    hicache_storage_prefetch_policy: storage_options.StoragePrefetch = PrefetchPolicy.timeout,
    restore: storage_options.Restore = Restoring.off,
    chunked_prefill_size: chosen_engine.ChunkedPrefillSize = None,
    mixed_chunk: chosen_engine.MixedChunk = False,
    speculative_num_draft_tokens: chosen_engine.DraftTokens = 1,
    acceptance: chosen_engine.Accepted = 1.0,
    known_lengths: chosen_engine.KnownLengths = False,
    replicas: Annotated[
        int,
        typer.Option(min=1, help="Number of servers behind a router.", rich_help_panel=_SERVER),
    ] = 1,
    router: Annotated[
        Router,
        typer.Option(help="Which server gets a request.", rich_help_panel=_SERVER),
    ] = Router.least_loaded,
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
    everything: Everything = False,
    seed: Annotated[int, typer.Option(min=0, help="Seed of --sample and of --rate.")] = 0,
    window: chosen_trace.Window = None,
    sample: chosen_trace.Sample = None,
    speed_up: chosen_trace.SpeedUp = None,
    limit: chosen_trace.Limit = None,
    rate: chosen_trace.Rate = None,
    classes: chosen_trace.Classes = None,
    ttft_slo: chosen_trace.TtftSlo = None,
    tbt_slo: chosen_trace.TbtSlo = None,
) -> None:
    """Simulate a trace on a device under each policy: a table, and a page with plots.

    Runs SGLang's scheduling in virtual time, with the device's step times and the same policy
    object that the server runs. Needs no GPU and no SGLang, and takes seconds instead of hours.
    """
    times = chosen_engine.needed_for_times(device, profile)
    need("A simulation", *RUNS, *PAGES, *times, *(RAY if ray else ()))
    console = Console(stderr=True)

    # Only here: the CLI must start without what a simulation needs.
    from tokenflow_sgl.lab.runs import new_folder, write_run
    from tokenflow_sgl.lab.sim import SimulationError
    from tokenflow_sgl.lab.sim.schedulers.by_name import settings_of
    from tokenflow_sgl.lab.sim.study.sweep import Setup, parse_sweep

    names = list(dict.fromkeys(policy.split(",")))
    with failing("No simulation"):
        if ray and not sweep:
            raise SimulationError("--ray is for sweeps; allowed is --ray with --sweep")
        if sweep and (replicas > 1 or policy not in (chosen_engine.DEFAULT_POLICIES, "tokenflow")):
            raise SimulationError(
                "--sweep varies tokenflow on one server; allowed with it is no other --policy, "
                "and no --replicas"
            )
        settings = parse_sweep(sweep or ())
        chosen = chosen_trace.open_chosen(
            trace,
            console,
            seed=seed,
            window=window,
            sample=sample,
            speed_up=speed_up,
            limit=limit,
            rate=rate,
            classes=classes,
            ttft_slo=ttft_slo,
            tbt_slo=tbt_slo,
        )
        target, options = chosen_engine.open_engine(
            device,
            model,
            profile,
            kv_tokens=kv_tokens,
            page_size=page_size,
            sliding_window=sliding_window,
            swa_full_tokens_ratio=swa_full_tokens_ratio,
            hicache_ratio=hicache_ratio,
            hicache_write_policy=hicache_write_policy,
            hicache_io_backend=hicache_io_backend,
            hicache_mem_layout=hicache_mem_layout,
            load_evict_overlap=load_evict_overlap,
            storage_gbps=storage_gbps,
            storage_latency_us=storage_latency_us,
            storage_writes=storage_writes,
            hicache_storage_prefetch_policy=hicache_storage_prefetch_policy,
            restore=restore,
            chunked_prefill_size=chunked_prefill_size,
            mixed_chunk=mixed_chunk,
            speculative_num_draft_tokens=speculative_num_draft_tokens,
            acceptance=acceptance,
        )
        for name in names:
            settings_of(name, options)
        with new_folder(output, chosen.name, runs=Path("simulate-results")) as folder:
            if sweep:
                setup = Setup(
                    chosen, target, options, known_lengths, chosen_trace.classes_of(classes)
                )
                _sweep(setup, settings, folder, console, ray=ray)
                return
            done = [
                _simulate(
                    chosen,
                    target,
                    options,
                    console,
                    policy=name,
                    replicas=replicas,
                    router=router,
                    known_lengths=known_lengths,
                    classes=chosen_trace.classes_of(classes),
                )
                for name in names
            ]
            for name, simulation in zip(names, done, strict=True):
                write_run(folder / name, simulation.run)
            shown = judge(done, folder / "report.html", console)
    print_figures(shown, everything=everything)
    print_notes(done)
    print_storage(done)
    if replicas == 1:
        print_bounds(chosen, target, options)
    runs = " ".join(str(folder / name) for name in names)
    console.print(
        f"Runs and {folder / 'report.html'} written. All figures: tokenflow report {runs}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _simulate(
    trace: Trace,
    profile: DeviceProfile,
    options: EngineOptions,
    console: Console,
    *,
    policy: str,
    replicas: int,
    router: str,
    known_lengths: bool,
    classes: QosClasses,
) -> Simulation:
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
            known_lengths=known_lengths,
            classes=classes,
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
