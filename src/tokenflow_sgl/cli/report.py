"""``tokenflow report``: the figures of recorded runs, and how runs compare."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.cli.extras import PAGES, RUNS, need
from tokenflow_sgl.qos import NOTICEABLE_STALL

if TYPE_CHECKING:
    from tokenflow_sgl.report import Comparison, Figures, Options

_FILE_WIDTH = 110


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs; the first is the baseline."),
    ],
    html: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Also write a page with plots to this file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print a Markdown table instead of tables.")
    ] = False,
    ttft_slo: Annotated[
        float | None, typer.Option(help="TTFT objective of requests that carry none, seconds.")
    ] = None,
    tbt_slo: Annotated[
        float | None, typer.Option(help="TBT objective of requests that carry none, seconds.")
    ] = None,
    tbt_rule: Annotated[
        str,
        typer.Option(help="A request meets its TBT objective by: p99 of its gaps, mean, or every."),
    ] = "p99",
    expected_ttft: Annotated[
        float,
        typer.Option(help="Andes QoE: seconds to the first token that a reader expects."),
    ] = 1.0,
    ttft_penalty: Annotated[
        float,
        typer.Option(help="lambda of Eq. 2, tokens per second of TTFT; the paper gives none."),
    ] = 0.0,
    stall_penalty: Annotated[
        float,
        typer.Option(help="mu of Eq. 2, tokens per second of stall; the paper gives none."),
    ] = 0.0,
    stall_threshold: Annotated[
        float,
        typer.Option(
            help="Count stalls that are longer than this, seconds; stalled time is summed whole."
        ),
    ] = NOTICEABLE_STALL,
    resamples: Annotated[
        int, typer.Option(help="Bootstrap samples behind each interval of a comparison.")
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the bootstrap.")] = 0,
    allow_different: Annotated[
        bool,
        typer.Option("--allow-different", help="Compare runs of different traces, unpaired."),
    ] = False,
) -> None:
    """Show the figures of a recorded run, or compare runs of the same trace.

    Prints tables. Writes nothing unless --html names a file: one page with plots, for a browser.
    A run that is invalid or was interrupted is marked as such wherever it is shown.
    """
    messages = Console(stderr=True)
    if as_json and as_markdown:
        messages.print("--json and --markdown exclude each other.", style="red", markup=False)
        raise typer.Exit(2)
    need("A report", *RUNS, *(PAGES if html is not None else ()))

    # Only here: the CLI must start without what a report needs.
    from tokenflow_sgl.replay.store import RunError
    from tokenflow_sgl.report import Options, ReportError, TbtRule

    try:
        if tbt_rule not in list(TbtRule):
            raise ReportError(f"tbt-rule must be {', '.join(TbtRule)}, got {tbt_rule!r}")
        options = Options(
            ttft_penalty=ttft_penalty,
            stall_penalty=stall_penalty,
            stall_threshold_s=stall_threshold,
            ttft_slo_s=ttft_slo,
            tbt_slo_s=tbt_slo,
            tbt_rule=TbtRule(tbt_rule),
            expected_ttft_s=expected_ttft,
            resamples=resamples,
            seed=seed,
        )
        with messages.status("reading") as status:
            shown = _read(runs, options, status.update, allow_different=allow_different)
            if html is not None:
                from tokenflow_sgl.report.page import page

                text = page(shown, status.update)
                html.parent.mkdir(parents=True, exist_ok=True)
                html.write_text(text, encoding="utf-8")
    except (ReportError, RunError, OSError) as error:
        messages.print(f"No report: {error}.", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None
    _print(shown, as_json=as_json, as_markdown=as_markdown)
    if html is not None:
        size = html.stat().st_size / 1e6
        messages.print(
            f"Wrote {html} ({size:.1f} MB).", markup=False, highlight=False, soft_wrap=True
        )


def _read(
    folders: list[Path],
    options: Options,
    progress: Callable[[str], None],
    *,
    allow_different: bool,
) -> Figures | Comparison:
    from tokenflow_sgl.replay.store import read_run
    from tokenflow_sgl.report import compare, figures

    found = []
    read = [(folder, read_run(folder)) for folder in folders]
    names = Counter(run.info.name for _, run in read)
    for folder, run in read:
        progress(f"judging {folder.name}")
        if names[run.info.name] > 1:  # two runs of one name must be told apart
            label = f"{run.info.name} ({folder.resolve().name})"
            run = dataclasses.replace(run, info=dataclasses.replace(run.info, name=label))
        found.append(figures(run, options))
    if len(found) == 1:
        return found[0]
    progress("comparing")
    return compare(found[0], found[1:], allow_different=allow_different)


def _print(shown: Figures | Comparison, *, as_json: bool, as_markdown: bool) -> None:
    from tokenflow_sgl.report import Figures, markdown_table

    if as_json:
        from tokenflow_sgl.report.export import comparison_object, run_object, to_json

        typer.echo(
            to_json(run_object(shown) if isinstance(shown, Figures) else comparison_object(shown))
        )
    elif as_markdown:
        typer.echo(markdown_table(shown), nl=False)
    else:
        from tokenflow_sgl.report.terminal import comparison_view, run_view

        console = Console()
        if not console.is_terminal:
            console.width = _FILE_WIDTH  # into a file or a pipe: room for whole tables
        console.print(run_view(shown) if isinstance(shown, Figures) else comparison_view(shown))
