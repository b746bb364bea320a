"""``tokenflow tune``: the policy's parameters for a trace, as a tuning file."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
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


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """The options of a search: what for, how long, where, and what is kept of it."""

    objective: Annotated[
        Objective,
        typer.Option(
            help="What to improve: waiting (TTFT and stalls together), effective (throughput), "
            "p99-ttft. Parameters are rejected if they cost more than 1% of the tokens or of the "
            "effective tokens per second, or if readers wait longer on average than with those "
            "shipped."
        ),
    ] = Objective.waiting
    trials: Annotated[
        int, typer.Option(min=2, help="Number of simulations, with that of the shipped parameters.")
    ] = 60
    check: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE",
            help="Another trace, held out of the search, that decides whether the parameters found "
            "are recommended. Default: two other draws of a workload, or the second half of a "
            "file.",
        ),
    ] = None
    ray: chosen_engine.OnRay = False
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Write all runs to this Parquet file.",
            callback=output_file,
        ),
    ] = None
    save: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            dir_okay=False,
            help="Write the parameters, if they are recommended, to this file (TOML), for a "
            "server's --tokenflow-tuning and for tokenflow simulate --tuning.",
            callback=output_file,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class SearchedTrace(chosen_trace.TraceChoice):
    """What is selected of the searched trace, and the seed of all that is drawn."""

    seed: Annotated[int, typer.Option(min=0, help="Seed of the search, --sample, --rate.")] = 0


@shares_options
def tune(
    trace: chosen_trace.Spec,
    *,
    search: SearchOptions,
    server: chosen_engine.StudiedServer,
    part: SearchedTrace,
) -> None:
    """Search tokenflow's parameters for your trace by simulation, and print those to use.

    The parameters found fit the searched trace, partly by chance. So they are compared with the
    shipped ones on traces that were held out of the search. They are printed, as a tuning file,
    only if they are better by 3% on each of these; otherwise the answer is to keep the defaults.
    The best held-out trace is one of another day, named by --check.
    """
    need("A search", "optuna", *RUNS, *PAGES, *server.needs, *(RAY if search.ray else ()))
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
            chosen, classes = part.open(spec, console), chosen_trace.classes_of(part.classes)
            return Setup(chosen, target, options, server.known_lengths, classes)

        searched = opened(trace)
        draws = [other_draw(trace, number) for number in range(1, SEEDS + 1)]
        if search.check is not None:
            others = [opened(search.check)]
        elif None not in draws:
            others = [opened(draw) for draw in draws if draw is not None]
        else:
            first, second = (
                dataclasses.replace(searched, trace=half) for half in halves(searched.trace)
            )
            searched, others = first, [second]
        found, held = _search(searched, others, search, part.seed, console)
        _print(f"{_called(searched)} on {target.device}: searched", found.shipped, found.best)
        for number, each in enumerate(held):
            name = f"{_called(others[number])}: held-out trace {number + 1} of {len(held)}"
            _print(name, each.shipped, each.tuned)
    against = objection(held, search.objective)
    verdict = _verdict(found, held, search, against)
    if found.setting and against is None and search.save is not None:
        with failing("The parameters are not written"):
            search.save.parent.mkdir(parents=True, exist_ok=True)
            search.save.write_text(_tuning_file(found), encoding="utf-8")
    Console().print(verdict, soft_wrap=True, highlight=False, markup=False)
    if search.output is not None:
        with failing("The runs are not written"):
            search.output.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(found.rows), search.output)


def _search(
    setup: Setup,
    others: list[Setup],
    search: SearchOptions,
    seed: int,
    console: Console,
) -> tuple[Tuned, list[HeldOut]]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from tokenflow_sgl.lab.sim.study.held_out import hold_out
    from tokenflow_sgl.lab.sim.study.spread import on_cores, on_ray
    from tokenflow_sgl.lab.sim.study.tuning import OBJECTIVES, tune

    column, more = OBJECTIVES.get(search.objective, ("", True))
    columns = (
        TextColumn("runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=search.trials, best="")
        best: list[float] = []

        def done(row: Row) -> None:
            if row["allowed"]:
                best.append(row[column])
                shown = f"{_SHOWN[column]}: {(max if more else min)(best):,.4g}"
                progress.update(task, best=shown)
            progress.advance(task)

        with on_ray() if search.ray else on_cores() as spread:
            found = tune(
                setup,
                objective=search.objective,
                trials=search.trials,
                seed=seed,
                spread=spread,
                done=done,
            )
            if not found.setting:
                return found, []
            progress.update(
                task, total=search.trials + 2 * len(others), best="on what was held out"
            )
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


def _tuning_file(found: Tuned) -> str:
    """The parameters found, bit by bit those that were simulated."""
    from tokenflow_sgl.lab.sim.study.sweep import config_of
    from tokenflow_sgl.policy.tuning_file import write_tuning

    config = config_of(found.setting)
    return write_tuning({"policy": {name: getattr(config, name) for name in found.setting}})


def _verdict(found: Tuned, held: list[HeldOut], search: SearchOptions, against: str | None) -> str:
    """The parameters to use, or that there are none; with the figures that decided."""
    from tokenflow_sgl.lab.sim.study.held_out import MARGIN
    from tokenflow_sgl.lab.sim.study.tuning import OBJECTIVES

    if not found.setting:
        return f"Keep the defaults: nothing better was found in {len(found.rows)} runs."
    column, _ = OBJECTIVES[search.objective]

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
    if search.save is None:
        text = f"Parameters to use, in a file for --tokenflow-tuning:\n\n{_tuning_file(found)}"
    else:
        written = f"--scheduler tokenflow --tokenflow-tuning {search.save}"
        text = f"Parameters to use, written to {search.save}: {written}"
    return f"{text}\n({figures}; {rule}.)"
