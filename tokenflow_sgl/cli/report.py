"""``tokenflow report``: the figures of recorded runs, and how runs compare."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.choices import TbtRule
from tokenflow_sgl.cli.extras import PAGES, RUNS, need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import finite, output_file, picture, positive
from tokenflow_sgl.cli.shared_options import shares_options
from tokenflow_sgl.cli.wide_output import Everything, table_console

if TYPE_CHECKING:
    from tokenflow_sgl.lab.report import Comparison, Figures, Options


@dataclass(frozen=True, kw_only=True)
class ReportOutput:
    """The options that say how figures are shown, and where a page of them is written."""

    html: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Also write a page with plots to this file.",
            callback=output_file,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table instead of tables.")
    ] = False
    everything: Everything = False
    plot: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Of sweeps: draw tokens/s against the readers served well, all sweeps in one "
            "picture (.png, .svg or .pdf).",
            callback=picture,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JudgingOptions:
    """The options that say what is expected of a stream."""

    ttft_slo: Annotated[
        float | None,
        typer.Option(
            help="TTFT objective of requests that carry none, seconds.", callback=positive
        ),
    ] = None
    tbt_slo: Annotated[
        float | None,
        typer.Option(help="TBT objective of requests that carry none, seconds.", callback=positive),
    ] = None
    tbt_rule: Annotated[
        TbtRule,
        typer.Option(
            help="What must meet a request's TBT objective: the p99 of its gaps, their mean, or "
            "every gap."
        ),
    ] = TbtRule.p99
    expected_ttft: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="Andes QoE: TTFT that a reader expects, seconds.",
            callback=finite,
        ),
    ] = 1.0
    ttft_penalty: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="lambda of Eq. 2, tokens per second of TTFT; the paper gives no value.",
            callback=finite,
        ),
    ] = 0.0
    stall_penalty: Annotated[
        float,
        typer.Option(
            min=0.0,
            help="mu of Eq. 2, tokens per second of stall; the paper gives no value.",
            callback=finite,
        ),
    ] = 0.0
    rate: Annotated[
        float,
        typer.Option(
            help="Tokens per second that readers consume, in results of other tools, which do not "
            "say it.",
            callback=positive,
        ),
    ] = 20.0
    stall_threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            help="Count stalls longer than this, seconds; stalled time is summed without a "
            "threshold. Default: 0.1, the shortest that a reader notices.",
            callback=finite,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """The options of a comparison of runs."""

    resamples: Annotated[
        int, typer.Option(min=100, help="Bootstrap samples for each interval of a comparison.")
    ] = 2000
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0
    allow_different: Annotated[
        bool,
        typer.Option("--allow-different", help="Compare runs of different traces, unpaired."),
    ] = False


@shares_options
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, or folders that contain runs, as `tokenflow simulate` writes "
            "them; or results of AIPerf (profile_export.jsonl), GuideLLM, vLLM or SGLang. The "
            "first run is the baseline. Or folders of sweeps (tokenflow replay).",
        ),
    ],
    *,
    shown_as: ReportOutput,
    judged_by: JudgingOptions,
    compared_by: ComparisonOptions,
) -> None:
    """Show the figures of a recorded run, or compare runs of the same trace.

    Prints tables. With --html it also writes a page with plots. A run that is invalid or was
    interrupted is marked as such wherever it is shown.
    """
    messages = Console(stderr=True)
    html = shown_as.html
    if shown_as.as_json and shown_as.as_markdown:
        fail("--json and --markdown exclude each other.", Exit.usage)
    plot = ("matplotlib",) if shown_as.plot is not None else ()
    need("A report", *RUNS, *(PAGES if html is not None else plot))

    with failing("No report"):
        if _are_sweeps(runs, shown_as):
            _report_sweeps(runs, shown_as, messages)
            return
        options = _options(judged_by, compared_by)
        folders = _runs(runs, messages)
        with messages.status("reading") as status:
            shown = _read(
                folders,
                options,
                status.update,
                rate=judged_by.rate,
                allow_different=compared_by.allow_different,
            )
            if html is not None:
                from tokenflow_sgl.lab.report.page import page

                text = page(shown, status.update)
                html.parent.mkdir(parents=True, exist_ok=True)
                html.write_text(text, encoding="utf-8")
    _print(shown, shown_as)
    if html is not None:
        size = html.stat().st_size / 1e6
        messages.print(
            f"Wrote {html} ({size:.1f} MB).", markup=False, highlight=False, soft_wrap=True
        )


def _are_sweeps(folders: list[Path], shown_as: ReportOutput) -> bool:
    """Whether sweeps are asked for.

    Raises:
        BadParameter: Only some of the folders are sweeps, or an option is for the other kind.
    """
    from tokenflow_sgl.lab.report.load_sweep import SWEEP

    swept = [(folder / SWEEP).is_file() for folder in folders]
    if not any(swept):
        if shown_as.plot is not None:
            raise typer.BadParameter(
                f"--plot {shown_as.plot} is for sweeps, and {folders[0]} has no {SWEEP}: give "
                "sweeps, or --html for runs"
            )
        return False
    if not all(swept):
        raise typer.BadParameter(
            f"{folders[swept.index(True)]} is a sweep and {folders[swept.index(False)]} is none: "
            "give sweeps or runs, not both"
        )
    for name, given in (("--html", shown_as.html), ("--markdown", shown_as.as_markdown)):
        if given:
            raise typer.BadParameter(
                f"{name} is for runs, and {folders[0]} is a sweep: give --plot FILE or --json, or "
                "the runs in it"
            )
    return True


def _report_sweeps(folders: list[Path], shown_as: ReportOutput, messages: Console) -> None:
    """Print sweeps, and draw them into one picture if it has a name."""
    from tokenflow_sgl.lab.report.export import to_json
    from tokenflow_sgl.lab.report.load_sweep import read_sweep, sweep_object
    from tokenflow_sgl.lab.report.sweep_view import print_sweep

    sweeps = [read_sweep(folder) for folder in folders]
    places = [folder.resolve() for folder in folders]
    apart = _told_apart(list(dict.fromkeys(places)))
    names = [sweep.name for sweep in sweeps]
    labels = [
        f"{name} ({apart[place]})" if names.count(name) > 1 else name
        for name, place in zip(names, places, strict=True)
    ]
    shown = [
        dataclasses.replace(sweep, name=label) for sweep, label in zip(sweeps, labels, strict=True)
    ]
    if shown_as.as_json:
        objects = [sweep_object(sweep) for sweep in shown]
        typer.echo(to_json(objects[0] if len(objects) == 1 else {"sweeps": objects}))
    else:
        for number, sweep in enumerate(shown):
            if number:
                typer.echo()
            print_sweep(sweep, table_console())
    if shown_as.plot is not None:
        from tokenflow_sgl.lab.report.pareto import plot_pareto

        shown_as.plot.parent.mkdir(parents=True, exist_ok=True)
        plot_pareto(shown, shown_as.plot)
        messages.print(f"Wrote {shown_as.plot}.", markup=False, highlight=False, soft_wrap=True)


def _options(judging: JudgingOptions, comparison: ComparisonOptions) -> Options:
    # Only here: the CLI must start without what a report needs.
    from tokenflow_sgl.lab.report import Options
    from tokenflow_sgl.qos import NOTICEABLE_STALL

    threshold = judging.stall_threshold
    return Options(
        ttft_penalty=judging.ttft_penalty,
        stall_penalty=judging.stall_penalty,
        stall_threshold_s=NOTICEABLE_STALL if threshold is None else threshold,
        ttft_slo_s=judging.ttft_slo,
        tbt_slo_s=judging.tbt_slo,
        tbt_rule=judging.tbt_rule,
        expected_ttft_s=judging.expected_ttft,
        resamples=comparison.resamples,
        seed=comparison.seed,
    )


def _runs(folders: list[Path], messages: Console) -> list[Path]:
    """The runs that the folders are or contain; prints which these are."""
    from tokenflow_sgl.lab.runs import runs_in

    found = []
    for folder in folders:
        inside = [folder] if folder.is_file() else runs_in(folder)
        if inside != [folder]:
            names = ", ".join(run.name for run in inside)
            messages.print(
                f"Runs in {folder}: {names}.", markup=False, highlight=False, soft_wrap=True
            )
        found += inside
    return found


def _read(
    folders: list[Path],
    options: Options,
    progress: Callable[[str], None],
    *,
    rate: float,
    allow_different: bool,
) -> Figures | Comparison:
    from tokenflow_sgl.lab.report import compare, figures
    from tokenflow_sgl.lab.runs import read_results, read_run

    found = []
    read = [
        (folder, run)
        for folder in folders
        for run in (read_results(folder, rate) if folder.is_file() else [read_run(folder)])
    ]
    alike = defaultdict(list)
    for folder, run in read:
        alike[run.info.name].append(folder.resolve())
    for folder, run in read:
        progress(f"judging {folder.name}")
        same = alike[run.info.name]
        if len(set(same)) > 1:  # two runs of one name must be told apart
            label = f"{run.info.name} ({_told_apart(same)[folder.resolve()]})"
            run = dataclasses.replace(run, info=dataclasses.replace(run.info, name=label))
        found.append(figures(run, options))
    if len(found) == 1:
        return found[0]
    progress("comparing")
    return compare(found[0], found[1:], allow_different=allow_different)


def _told_apart(folders: list[Path]) -> dict[Path, str]:
    """The shortest ends of the paths that differ, without what all of them end in."""
    ends = {folder: folder.parts for folder in folders}
    while len(ends) > 1 and len({parts[-1] for parts in ends.values()}) == 1:
        ends = {folder: parts[:-1] for folder, parts in ends.items()}
    size = 1
    while len({parts[-size:] for parts in ends.values()}) < len(ends):
        size += 1
    return {folder: str(Path(*parts[-size:])) for folder, parts in ends.items()}


def _print(shown: Figures | Comparison, shown_as: ReportOutput) -> None:
    from tokenflow_sgl.lab.report import Figures, markdown_table

    if shown_as.as_json:
        from tokenflow_sgl.lab.report.export import comparison_object, run_object, to_json

        typer.echo(
            to_json(run_object(shown) if isinstance(shown, Figures) else comparison_object(shown))
        )
    elif shown_as.as_markdown:
        typer.echo(markdown_table(shown), nl=False)
    else:
        from tokenflow_sgl.lab.report.terminal import comparison_view, run_view

        table_console().print(
            run_view(shown)
            if isinstance(shown, Figures)
            else comparison_view(shown, everything=shown_as.everything)
        )
