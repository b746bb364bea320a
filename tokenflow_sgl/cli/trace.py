"""``tokenflow trace``: look at traces, make them, convert them."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.cli.extras import need
from tokenflow_sgl.cli.failing import failing
from tokenflow_sgl.cli.option_checks import output_file, picture, positive
from tokenflow_sgl.cli.shared_options import shares_options

if TYPE_CHECKING:
    from tokenflow_sgl.lab.traces import Trace
    from tokenflow_sgl.lab.traces.generators.request_lengths import LengthPairs
    from tokenflow_sgl.lab.traces.loaders import Progress

trace_app = typer.Typer(
    help="Describe, make and convert request traces.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

_PATIENCE_S = 1.0  # reading that takes longer shows a progress bar

Spec = Annotated[
    str,
    typer.Argument(
        help="h200-a and the like, PATH.jsonl, or FORMAT:PATH?key=value&... (docs/traces.md)."
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output",
        "-o",
        dir_okay=False,
        help="File to write, native format.",
        callback=output_file,
    ),
]


@trace_app.command()
def stats(
    spec: Spec,
    plot: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Also draw it: PNG, SVG or PDF.", callback=picture),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Describe a trace: arrivals, lengths, sessions, readers, and what was dropped."""
    if plot is not None:
        need("--plot", "matplotlib")
    trace = _open(spec)
    from tokenflow_sgl.lab.traces import summarise
    from tokenflow_sgl.lab.traces.show import show, to_json

    figures = summarise(trace)
    if as_json:
        typer.echo(json.dumps(to_json(trace, figures), indent=2, allow_nan=False))
    else:
        show(Console(), trace, figures)
    if plot is not None:
        from tokenflow_sgl.lab.traces.trace_plot import draw

        with failing():
            plot.parent.mkdir(parents=True, exist_ok=True)
            draw(plot, trace)
        if not as_json:
            typer.echo(f"Wrote {plot}.")


@trace_app.command()
def convert(spec: Spec, output: Output) -> None:
    """Write a trace in the native format, after all changes by its keys."""
    _write(output, _open(spec))


@dataclass(frozen=True, kw_only=True)
class SyntheticTrace:
    """The options of a trace that is generated; their help texts say more of each."""

    arrivals: Annotated[
        str,
        typer.Option(
            help="Arrivals, as in poisson:rate=2. Known are burst (size, every_s, spread_s), "
            "poisson (rate), gamma (rate, cv), onoff (rate, on_s, off_s, off_rate) and diurnal "
            "(rate, amplitude, period_s, peak_s)."
        ),
    ]
    requests: Annotated[
        int | None, typer.Option(min=1, help="Number of requests, or of sessions with --sessions.")
    ] = None
    duration: Annotated[
        float | None,
        typer.Option(
            help="Instead of --requests: seconds during which requests arrive.", callback=positive
        ),
    ] = None
    prompts: Annotated[
        str | None,
        typer.Option(
            help="Lengths of prompts, as in normal:mean=512. Known are fixed (tokens), normal "
            "(mean, sd, low, high) and lognormal (mean, cv, low, high). With --sessions these are "
            "the lengths of a turn's own message."
        ),
    ] = None
    outputs: Annotated[str | None, typer.Option(help="Lengths of answers, as --prompts.")] = None
    lengths: Annotated[
        str | None,
        typer.Option(
            help="Instead of --prompts and --outputs: long-context-8k, -32k or -128k, or like=SPEC "
            "to draw from another trace's requests."
        ),
    ] = None
    rates: Annotated[
        str | None, typer.Option(help="Reading rates, tokens/s: 20, 15/20/25/30 or 15=3/20=1.")
    ] = None
    sessions: Annotated[
        str | None,
        typer.Option(
            help="Make conversations, as in turns=4,think_s=5: mean number of turns, mean think "
            "time, system_tokens of a system prompt, and groups that have different ones."
        ),
    ] = None
    priorities: Annotated[
        str | None,
        typer.Option(
            help="Priorities that change, as in random:frequency=1,levels=4,active_s=30. Known are "
            "random (frequency, levels, active_s) and markov (these, slots, locality, memory)."
        ),
    ] = None
    ttft_slo: Annotated[
        float | None,
        typer.Option(help="Objective for the time to first token, seconds.", callback=positive),
    ] = None
    tbt_slo: Annotated[
        float | None,
        typer.Option(help="Objective for the time between tokens, seconds.", callback=positive),
    ] = None
    name: Annotated[str | None, typer.Option(help="Name of the trace. Default: the file's.")] = None
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random draws.")] = 0

    @property
    def note(self) -> str:
        """What the trace says of how it was made."""
        said = [f"arrivals {self.arrivals}"]
        said.append(self.lengths or f"prompts {self.prompts}, outputs {self.outputs}")
        said += [f"sessions {self.sessions}"] if self.sessions else []
        said += [f"readers of {self.rates} tokens/s"] if self.rates else []
        return f"Synthetic: {'; '.join(said)}."

    def make(self, name: str) -> Trace:
        """Make the trace that these options describe.

        Args:
            name: It is called this unless an option says otherwise.

        Raises:
            TraceError: An option cannot be understood, or does not go with another one.
        """
        from tokenflow_sgl.lab.traces import TraceConfig, make_trace
        from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS
        from tokenflow_sgl.lab.traces.generators.priority_changes import PRIORITIES
        from tokenflow_sgl.lab.traces.generators.reading_rates import parse_rates
        from tokenflow_sgl.lab.traces.generators.sessions import SessionConfig
        from tokenflow_sgl.lab.traces.parameters import choose
        from tokenflow_sgl.lab.traces.transform import with_priorities, with_slos

        trace = make_trace(
            TraceConfig(
                name=self.name or name,
                arrivals=choose("arrivals", ARRIVALS, self.arrivals),
                lengths=_lengths(self.prompts, self.outputs, self.lengths),
                requests=self.requests,
                duration_s=self.duration,
                rates=None if self.rates is None else parse_rates(self.rates),
                sessions=None
                if self.sessions is None
                else choose("sessions", {"sessions": SessionConfig}, f"sessions:{self.sessions}"),
                seed=self.seed,
                note=self.note,
            )
        )
        if self.ttft_slo is not None or self.tbt_slo is not None:
            trace = with_slos(trace, self.ttft_slo, self.tbt_slo)
        if self.priorities is not None:
            drawn = choose("priorities", PRIORITIES, self.priorities)
            trace = with_priorities(trace, drawn, self.seed)
        return trace


@trace_app.command()
@shares_options
def make(
    output: Output,
    *,
    made_of: SyntheticTrace,
) -> None:
    """Make a synthetic trace. The same options make the same trace."""
    with failing():
        trace = made_of.make(output.name.partition(".")[0])
    _write(output, trace)


# ---- reading and writing ------------------------------------------------------------


def _open(spec: str) -> Trace:
    from tokenflow_sgl.lab.traces import open_trace

    with failing(), _progress() as progress:
        return open_trace(spec, progress=progress)


def _write(path: Path, trace: Trace) -> None:
    from tokenflow_sgl.lab.traces import write_native

    with failing():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_native(path, trace)
    typer.echo(f"Wrote {path}: {len(trace.requests):,} requests.")


def _lengths(prompts: str | None, outputs: str | None, lengths: str | None) -> LengthPairs:
    from tokenflow_sgl.lab.traces import TraceError
    from tokenflow_sgl.lab.traces.generators.mixes import MIXES
    from tokenflow_sgl.lab.traces.generators.request_lengths import (
        LENGTHS,
        EmpiricalLengths,
        SeparateLengths,
    )
    from tokenflow_sgl.lab.traces.parameters import choose

    if lengths is None:
        if prompts is None or outputs is None:
            raise TraceError("either --lengths or both of --prompts and --outputs must be given")
        prompt = choose("prompts", LENGTHS, prompts)
        return SeparateLengths(prompt, choose("outputs", LENGTHS, outputs))
    if prompts is not None or outputs is not None:
        raise TraceError("--lengths cannot be given together with --prompts or --outputs")
    if lengths.startswith("like="):
        return EmpiricalLengths(_open(lengths.removeprefix("like=")))
    if lengths not in MIXES:
        raise TraceError(
            f"lengths {lengths!r} is unknown; allowed are {', '.join(MIXES)} or like=SPEC"
        )
    return MIXES[lengths]


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A progress bar on standard error that appears when reading takes long."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    begun = time.monotonic()
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("reading"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("reading", total=None)

    def report(done: int, size: int) -> None:
        if time.monotonic() - begun > _PATIENCE_S:
            bar.start()
            bar.update(task, completed=done, total=size)

    try:
        yield report
    finally:
        if bar.live.is_started:
            bar.stop()
