"""``tokenflow tune``: the policy's parameters for a trace, and the flags that set them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.cli import choices
from tokenflow_sgl.cli.checks import output_file
from tokenflow_sgl.cli.chosen_engine import (
    ChunkedPrefillSize,
    Device,
    HicacheRatio,
    KvTokens,
    Model,
    PageSize,
    ProfileFile,
    open_engine,
)
from tokenflow_sgl.cli.chosen_trace import Limit, Rate, Sample, SpeedUp, Window, open_chosen
from tokenflow_sgl.cli.extras import PAGES, RUNS, need
from tokenflow_sgl.cli.failing import failing

if TYPE_CHECKING:
    from tokenflow_sgl.sim.sweep import Device as Simulated
    from tokenflow_sgl.sim.sweep import Row, Setting
    from tokenflow_sgl.sim.tune import Tuned

_SHOWN = {
    "effective_throughput": "effective tokens/s",
    "token_throughput": "tokens/s",
    "mean_ttft_s": "mean TTFT, s",
    "p99_ttft_s": "P99 TTFT, s",
    "mean_stall_s": "mean stall, s",
    "mean_waiting_s": "mean waiting, s",
}


def tune(
    trace: Annotated[
        str, typer.Option(help="What is asked: PATH, FORMAT:PATH or a workload, and its keys.")
    ],
    objective: Annotated[
        choices.Objective,
        typer.Option(
            help="What to look for: waiting (TTFT and stalls together), effective (throughput), "
            "p99-ttft. Parameters that cost more than 1% of all tokens per second, or let "
            "readers wait longer on average than those shipped, are out."
        ),
    ] = choices.Objective.waiting,
    trials: Annotated[
        int, typer.Option(min=2, help="Simulations, the shipped parameters' included.")
    ] = 60,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE",
            help="Another trace on which what was found is compared with what is shipped.",
        ),
    ] = None,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray", help="Over a Ray cluster: RAY_ADDRESS, or one of this machine's cores."
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", dir_okay=False, help="All runs, as Parquet.", callback=output_file
        ),
    ] = None,
    device: Device = choices.Device.h200,
    model: Model = choices.Model.llama3_8b,
    profile: ProfileFile = None,
    kv_tokens: KvTokens = None,
    page_size: PageSize = 1,
    hicache_ratio: HicacheRatio = 2.0,
    chunked_prefill_size: ChunkedPrefillSize = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search, --sample, --rate.")] = 0,
    window: Window = None,
    sample: Sample = None,
    speed_up: SpeedUp = None,
    limit: Limit = None,
    rate: Rate = None,
) -> None:
    """Search tokenflow's parameters for your trace by simulation, and print the flags to use.

    What is found fits this trace. With --check you see what is left of it on another one, say of
    another day: believe that.
    """
    need("A search", "optuna", *RUNS, *PAGES)
    console = Console(stderr=True)

    # Only here: the CLI must start without what a search needs.
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tokenflow_sgl.sim.sweep import row_of

    with failing("No search"):
        target, options = open_engine(
            device,
            model,
            profile,
            kv_tokens=kv_tokens,
            page_size=page_size,
            hicache_ratio=hicache_ratio,
            chunked_prefill_size=chunked_prefill_size,
        )

        def opened(spec: str) -> Simulated:
            chosen = open_chosen(
                spec,
                console,
                seed=seed,
                window=window,
                sample=sample,
                speed_up=speed_up,
                limit=limit,
                rate=rate,
            )
            return chosen, target, options

        searched = opened(trace)
        other = None if check is None else opened(check)
        found = _search(searched, objective, trials, seed, ray, console)
        _print(f"{searched[0].name} on {target.device}", found.shipped, found.best)
        if other and found.setting:
            name = f"{other[0].name}, which was not searched"
            _print(name, row_of(other, {}), row_of(other, found.setting))
    Console().print(_flags(found.setting), soft_wrap=True, highlight=False, markup=False)
    if output is not None:
        with failing("The runs are not written"):
            output.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(found.rows), output)


def _search(
    device: Simulated, objective: str, trials: int, seed: int, ray: bool, console: Console
) -> Tuned:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tokenflow_sgl.sim.spread import on_cores, on_ray
    from tokenflow_sgl.sim.tune import OBJECTIVES, tune

    column, more = OBJECTIVES.get(objective, ("", True))
    columns = (
        TextColumn("runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=trials, best="")
        best: list[float] = []

        def done(row: Row) -> None:
            if row["allowed"]:
                best.append(row[column])
                shown = f"{_SHOWN[column]}: {(max if more else min)(best):,.4g}"
                progress.update(task, best=shown)
            progress.advance(task)

        with on_ray() if ray else on_cores() as spread:
            return tune(
                device, objective=objective, trials=trials, seed=seed, spread=spread, done=done
            )


def _print(title: str, shipped: Row, tuned: Row) -> None:
    table = Table(title=title)
    for head in ("", "shipped", "tuned", "ratio"):
        table.add_column(head, justify="right" if head else "left")
    for column, name in _SHOWN.items():
        before, after = shipped[column], tuned[column]
        ratio = f"{after / before:.3f}" if before else "-"
        table.add_row(name, f"{before:,.4g}", f"{after:,.4g}", ratio)
    Console().print(table)


def _flags(setting: Setting) -> str:
    if not setting:
        return "Nothing better was found than the parameters as shipped."
    flags = [f"--tokenflow-{name.replace('_', '-')} {value:.4g}" for name, value in setting.items()]
    return "Flags to use: --scheduler tokenflow " + " ".join(flags)
