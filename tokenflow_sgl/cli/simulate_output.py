"""What ``tokenflow simulate`` shows: the comparison, its page, its bounds, or a sweep's table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.cli.wide_output import table_console

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenflow_sgl.lab.profiles import DeviceProfile
    from tokenflow_sgl.lab.report import Comparison, Figures
    from tokenflow_sgl.lab.sim import EngineOptions, Simulation
    from tokenflow_sgl.lab.traces import Trace

_MOST_FORESEEN = 5000
"""Most requests of a trace for which the no-stall schedule is computed; takes a few seconds."""


def judge(done: list[Simulation], page_path: Path, console: Console) -> Figures | Comparison:
    """Judge the runs, the first one as the baseline, and write the page of as many as it shows."""
    from tokenflow_sgl.lab.report import Comparison, compare, figures
    from tokenflow_sgl.lab.report.page import page
    from tokenflow_sgl.lab.report.plots import MOST_RUNS

    with console.status("judging") as status:
        judged = [figures(simulation.run) for simulation in done]
        shown = judged[0] if len(judged) == 1 else compare(judged[0], judged[1:])
        drawn = shown
        if isinstance(shown, Comparison):
            drawn = Comparison(shown.baseline, shown.others[: MOST_RUNS - 1])
        page_path.write_text(page(drawn, status.update), encoding="utf-8")
    if len(done) > MOST_RUNS:
        console.print(
            f"{page_path} shows the first {MOST_RUNS} runs.", markup=False, soft_wrap=True
        )
    return shown


def print_figures(shown: Figures | Comparison, *, everything: bool) -> None:
    """Print the tables of one run, or of a comparison: of all figures, or of those that differ."""
    from tokenflow_sgl.lab.report import Figures
    from tokenflow_sgl.lab.report.terminal import comparison_view, run_view

    table_console().print(
        run_view(shown)
        if isinstance(shown, Figures)
        else comparison_view(shown, everything=everything)
    )


def print_notes(done: list[Simulation]) -> None:
    """Print what of the trace was not simulated; it is the same in all runs."""
    for note in done[0].run.info.target.get("notes", ()):
        table_console().print(f"Note: {note}", highlight=False, markup=False)


def print_storage(done: list[Simulation]) -> None:
    """Print what came from a storage below the host pool, where there is one."""
    console = table_console()
    for simulation in done:
        counts = simulation.storage
        if counts.fetched or counts.unused:
            console.print(
                f"{simulation.run.info.name}: {counts.fetched:,} tokens from the storage, and "
                f"{counts.unused:,} for nothing; {counts.both:,} requests by both sources, with "
                f"{counts.heads:,} tokens computed beside.",
                highlight=False,
            )


def print_bounds(trace: Trace, profile: DeviceProfile, options: EngineOptions) -> None:
    """Print what no scheduler can beat; nothing for traces whose later turns wait for answers."""
    from tokenflow_sgl.lab.sim.study.bounds import bounds
    from tokenflow_sgl.lab.sim.study.clairvoyant import clairvoyant

    if any(request.turn for request in trace.requests):
        return  # when later turns come depends on the answers before them
    if options.speculates:
        table_console().print("No bounds are known with speculation.")
        return
    limit = bounds(trace, profile, options)
    console = table_console()
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


def print_sweep(found: pa.Table, title: str) -> None:
    """Print a sweep, a row for each setting."""
    from tokenflow_sgl.lab.report.fitting import Fitting

    table = Table(title=title, box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in found.column_names:
        table.add_column(name.removesuffix("_s").replace("_", " "), justify="right")
    for row in found.to_pylist():
        table.add_row(*(_cell(value) for value in row.values()))
    table_console().print(Fitting(table))


def _cell(value: float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"
