"""The trace of a command: options that select a part of it or change it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console

from tokenflow_sgl.cli.option_checks import positive

if TYPE_CHECKING:
    from tokenflow_sgl.lab.traces import Trace
    from tokenflow_sgl.qos.classes import QosClasses

_TRACE, _READERS = "The trace", "The readers"

Spec = Annotated[str, typer.Option(help="Trace: PATH, FORMAT:PATH or a workload, with its keys.")]

Window = Annotated[
    str | None,
    typer.Option(
        metavar="START:SECONDS",
        help="Only requests that arrive in this window; START becomes time 0.",
        rich_help_panel=_TRACE,
    ),
]
Sample = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        help="Only this share of the sessions and single requests, drawn at random.",
        rich_help_panel=_TRACE,
    ),
]
SpeedUp = Annotated[
    float | None,
    typer.Option(
        metavar="FACTOR",
        help="Arrivals come FACTOR times as fast.",
        rich_help_panel=_TRACE,
        callback=positive,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Only the first N requests.", rich_help_panel=_TRACE),
]
Rate = Annotated[
    str | None,
    typer.Option(
        metavar="RATES",
        help="Reading rates in tokens per second, instead of the trace's: "
        "20, 15/20/25 (equally common) or 15=3/20=1 (with weights).",
        rich_help_panel=_READERS,
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="The server's file of classes (docs/rates.md), if the trace names classes. "
        "Default: the shipped ones.",
        rich_help_panel=_READERS,
    ),
]
TtftSlo = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Objective of every request for the time to first token.",
        rich_help_panel=_READERS,
        callback=positive,
    ),
]
TbtSlo = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="Objective of every request for the time between tokens.",
        rich_help_panel=_READERS,
        callback=positive,
    ),
]

T = TypeVar("T", int, float)


@dataclass(frozen=True, kw_only=True)
class TraceChoice:
    """The options of a command that select a part of a trace or change it."""

    seed: Annotated[int, typer.Option(min=0, help="Seed of --sample and of --rate.")] = 0
    window: Window = None
    sample: Sample = None
    speed_up: SpeedUp = None
    limit: Limit = None
    rate: Rate = None
    classes: Classes = None

    @property
    def slos(self) -> tuple[float | None, float | None]:
        """Objectives of every request in seconds: the time to first token, and between tokens."""
        return None, None

    def open(self, spec: str, console: Console) -> Trace:
        """Read a trace and apply the options' changes, always in this order.

        Args:
            spec: Of the trace, as a command is given it.
            console: Says meanwhile what is read.

        Raises:
            TraceError: It cannot be read, or a change leaves no request; the message names the
                option.
            ClassError: The file of classes cannot be used.
        """
        from tokenflow_sgl.lab.traces import open_trace, transform
        from tokenflow_sgl.lab.traces.generators.reading_rates import parse_rates

        with console.status(f"reading {spec}"):
            trace = open_trace(spec)
        if self.window is not None:
            with _named("--window"):
                start, seconds = pair(self.window, float, "--window", "START:SECONDS")
                trace = transform.window(trace, start, seconds)
        if self.sample is not None:
            with _named("--sample"):
                trace = transform.sample(trace, self.sample, self.seed)
        if self.speed_up is not None:
            with _named("--speed-up"):
                trace = transform.speed_up(trace, self.speed_up)
        if self.limit is not None:
            trace = transform.limit(trace, self.limit)
        if self.rate is not None:
            with _named("--rate"):
                trace = transform.with_rates(trace, parse_rates(self.rate), self.seed)
        trace = transform.with_classes(trace, classes_of(self.classes).rates)
        if any(slo is not None for slo in self.slos):
            trace = transform.with_slos(trace, *self.slos)
        return trace


@dataclass(frozen=True, kw_only=True)
class TraceWithSlos(TraceChoice):
    """What is selected of a trace, with objectives of every request."""

    ttft_slo: TtftSlo = None
    tbt_slo: TbtSlo = None

    @property
    def slos(self) -> tuple[float | None, float | None]:
        """Objectives of every request, TTFT and TBT in seconds; None: those of the trace."""
        return self.ttft_slo, self.tbt_slo


def classes_of(path: Path | None) -> QosClasses:
    """The classes of a file, or the shipped ones.

    Raises:
        ClassError: The file cannot be used.
    """
    from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, load_classes

    return SHIPPED_CLASSES if path is None else load_classes(path)


@contextmanager
def _named(option: str) -> Iterator[None]:
    """Put the option's name in front of an error about its value."""
    from tokenflow_sgl.lab.traces import TraceError

    try:
        yield
    except TraceError as error:
        raise TraceError(f"{option}: {error}") from None


def pair(text: str, number: type[T], option: str, form: str) -> tuple[T, T]:
    """Two numbers with a colon between them.

    Raises:
        BadParameter: The text is no such pair.
    """
    first, _, second = text.partition(":")
    try:
        return number(first), number(second)
    except ValueError:
        raise typer.BadParameter(f"{option} is {text!r}; allowed is {form}") from None
