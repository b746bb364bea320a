"""``tokenflow tune``: the policy's parameters for a trace, and the flags that set them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.choices import Objective
from tokenflow_sgl.cli import chosen_engine, chosen_trace
from tokenflow_sgl.cli.extras import PAGES, RAY, RUNS, need
from tokenflow_sgl.cli.failing import failing
from tokenflow_sgl.cli.option_checks import output_file
from tokenflow_sgl.cli.shared_options import shares_options

if TYPE_CHECKING:
    from tokenflow_sgl.lab.sim.study.held_out import HeldOut
    from tokenflow_sgl.lab.sim.study.sweep import Row, Setup
    from tokenflow_sgl.lab.sim.study.tuning import Tuned

_SHOWN = {
    "effective_throughput": "effective tokens/s",
    "token_throughput": "tokens/s",
    "mean_ttft_s": "mean TTFT, s",
    "p99_ttft_s": "P99 TTFT, s",
    "mean_stall_s": "mean stall, s",
    "mean_waiting_s": "mean waiting, s",
}


@shares_options
def tune(
    trace: chosen_trace.Spec,
    *,
    objective: Annotated[
        Objective,
        typer.Option(
            help="What to improve: waiting (TTFT and stalls together), effective (throughput), "
            "p99-ttft. Parameters are rejected if they cost more than 1% of the tokens or of the "
            "effective tokens per second, or if readers wait longer on average than with those "
            "shipped."
        ),
    ] = Objective.waiting,
    trials: Annotated[
        int, typer.Option(min=2, help="Number of simulations, with that of the shipped parameters.")
    ] = 60,
    check: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE",
            help="Another trace, held out of the search, that decides whether the parameters found "
            "are recommended. Default: two other draws of a workload, or the second half of a "
            "file.",
        ),
    ] = None,
    ray: chosen_engine.OnRay = False,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Write all runs to this Parquet file.",
            callback=output_file,
        ),
    ] = None,
    server: chosen_engine.StudiedServer,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the search, --sample, --rate.")] = 0,
    window: chosen_trace.Window = None,
    sample: chosen_trace.Sample = None,
    speed_up: chosen_trace.SpeedUp = None,
    limit: chosen_trace.Limit = None,
    rate: chosen_trace.Rate = None,
    classes: chosen_trace.Classes = None,
) -> None:
    """Search tokenflow's parameters for your trace by simulation, and print the flags to use.

    The parameters found fit the searched trace, partly by chance. So they are compared with the
    shipped ones on traces that were held out of the search. Their flags are printed only if they
    are better by 3% on each of these; otherwise the answer is to keep the defaults. The best
    held-out trace is one of another day, named by --check.
    """
    need("A search", "optuna", *RUNS, *PAGES, *server.needs, *(RAY if ray else ()))
    console = Console(stderr=True)

    # Only here: the CLI must start without what a search needs.
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tokenflow_sgl.lab.sim.study.held_out import SEEDS, halves, objection
    from tokenflow_sgl.lab.sim.study.sweep import Setup
    from tokenflow_sgl.lab.traces.spec import other_draw

    with failing("No search"):
        target, options = server.open()

        def opened(spec: str) -> Setup:
            chosen = chosen_trace.open_chosen(
                spec,
                console,
                seed=seed,
                window=window,
                sample=sample,
                speed_up=speed_up,
                limit=limit,
                rate=rate,
                classes=classes,
            )
            return Setup(
                chosen, target, options, server.known_lengths, chosen_trace.classes_of(classes)
            )

        searched = opened(trace)
        draws = [other_draw(trace, number) for number in range(1, SEEDS + 1)]
        if check is not None:
            others = [opened(check)]
        elif None not in draws:
            others = [opened(draw) for draw in draws if draw is not None]
        else:
            first, second = (
                dataclasses.replace(searched, trace=half) for half in halves(searched.trace)
            )
            searched, others = first, [second]
        found, held = _search(searched, others, objective, trials, seed, ray, console)
        _print(f"{_called(searched)} on {target.device}: searched", found.shipped, found.best)
        for number, each in enumerate(held):
            name = f"{_called(others[number])}: held-out trace {number + 1} of {len(held)}"
            _print(name, each.shipped, each.tuned)
    verdict = _verdict(found, held, objective, objection(held, objective))
    Console().print(verdict, soft_wrap=True, highlight=False, markup=False)
    if output is not None:
        with failing("The runs are not written"):
            output.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(found.rows), output)


def _search(
    setup: Setup,
    others: list[Setup],
    objective: str,
    trials: int,
    seed: int,
    ray: bool,
    console: Console,
) -> tuple[Tuned, list[HeldOut]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tokenflow_sgl.lab.sim.study.held_out import hold_out
    from tokenflow_sgl.lab.sim.study.spread import on_cores, on_ray
    from tokenflow_sgl.lab.sim.study.tuning import OBJECTIVES, tune

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
            found = tune(
                setup, objective=objective, trials=trials, seed=seed, spread=spread, done=done
            )
            if not found.setting:
                return found, []
            progress.update(task, total=trials + 2 * len(others), best="on what was held out")
            return found, hold_out(others, found, spread, lambda: progress.advance(task))


def _called(setup: Setup) -> str:
    known = ", known lengths" if setup.known_lengths else ""
    return f"{setup.trace.name}, {len(setup.trace.requests):,} requests{known}"


def _print(title: str, shipped: Row, tuned: Row) -> None:
    from tokenflow_sgl.lab.report.fitting import Fitting

    table = Table(title=title)
    for head in ("", "shipped", "tuned", "ratio"):
        table.add_column(head, justify="right" if head else "left")
    for column, name in _SHOWN.items():
        before, after = shipped[column], tuned[column]
        ratio = f"{after / before:.3f}" if before else "-"
        table.add_row(name, f"{before:,.4g}", f"{after:,.4g}", ratio)
    Console().print(Fitting(table))


def _verdict(found: Tuned, held: list[HeldOut], objective: str, against: str | None) -> str:
    """The flags to use, or that there are none; with the figures that decided."""
    from tokenflow_sgl.lab.sim.study.held_out import MARGIN
    from tokenflow_sgl.lab.sim.study.tuning import OBJECTIVES

    if not found.setting:
        return f"Keep the defaults: nothing better was found in {len(found.rows)} runs."
    column, _ = OBJECTIVES[objective]

    def ratio(shipped: Row, tuned: Row) -> str:
        return f"{tuned[column] / shipped[column]:.3f}" if shipped[column] else "-"

    elsewhere = ", ".join(ratio(each.shipped, each.tuned) for each in held)
    figures = (
        f"{_SHOWN[column]}, ratio to the defaults: {ratio(found.shipped, found.best)} where it was "
        f"searched, {elsewhere} where it was not"
    )
    rule = (
        f"recommended is what gains {MARGIN:.0%} on each trace that was held out and costs neither "
        "throughput nor waiting there"
    )
    if against is not None:
        return f"Keep the defaults: {against}.\n({figures}; {rule}.)"
    names = found.setting.items()
    flags = [f"--tokenflow-{name.replace('_', '-')} {value:.4g}" for name, value in names]
    return f"Flags to use: --scheduler tokenflow {' '.join(flags)}\n({figures}; {rule}.)"
