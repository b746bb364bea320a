"""``tokenflow plan``: which layers' KV of some streams would lie on the device, and the stalls."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from tokenflow_sgl.choices import PlacementSolver, Staging
from tokenflow_sgl.cli import chosen_engine
from tokenflow_sgl.cli.extras import need
from tokenflow_sgl.cli.failing import Exit, fail, failing
from tokenflow_sgl.cli.option_checks import picture, positive
from tokenflow_sgl.cli.shared_options import shares_options
from tokenflow_sgl.cli.wide_output import table_console
from tokenflow_sgl.errors import InputError

if TYPE_CHECKING:
    from tokenflow_sgl.cli.plan_output import PlanMemory, Planned
    from tokenflow_sgl.lab.profiles import DeviceProfile

_MOST_STREAMS = 256
"""Streams that are taken: with more the table and the picture say nothing."""
_MOST_TOKENS = 10**8


@dataclass(frozen=True, kw_only=True)
class PlannedServer:
    """The options of the server that a placement is planned for."""

    device: chosen_engine.Device = chosen_engine.DEFAULT_DEVICE
    model: chosen_engine.Model = chosen_engine.DEFAULT_MODEL
    profile: chosen_engine.ProfileFile = None
    kv_tokens: chosen_engine.KvTokens = None
    page_size: chosen_engine.PageSize = 16
    link_gb: Annotated[
        float | None,
        typer.Option(
            metavar="GB/S",
            help="Rate of the link from the host. Default: the device's.",
            callback=positive,
        ),
    ] = None

    def open(self) -> tuple[DeviceProfile, PlanMemory]:
        """The device that serves the model, and what of it is there for KV.

        Raises:
            ProfileError: There is no such device or model, or the file is not a profile.
        """
        from tokenflow_sgl.cli.plan_output import PlanMemory

        server = chosen_engine.SimulatedServer(
            profile=self.profile,
            kv_tokens=self.kv_tokens,
            hicache_ratio=0.0,
            page_size=self.page_size,
        )
        target, options = server.open(self.device, self.model)
        link = target.host_to_device.bandwidth if self.link_gb is None else 1e9 * self.link_gb
        return target, PlanMemory(options.max_total_tokens, self.page_size, link)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that decide how a placement is planned."""

    tbt_slo: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Longest decode step; streams are paused until it is kept.",
            callback=positive,
        ),
    ] = None
    ahead: Annotated[
        int,
        typer.Option(min=0, max=10_000, help="Decode steps for whose end the plan is made."),
    ] = 16
    staging: Annotated[
        Staging,
        typer.Option(
            help="Device memory for copies: as the largest layer of all streams needs, or a "
            "buffer for each stream."
        ),
    ] = Staging.layer
    solver: Annotated[
        PlacementSolver,
        typer.Option(help="What finds the placement: our search, or scipy's integer program."),
    ] = PlacementSolver.search


@dataclass(frozen=True, kw_only=True)
class PlanOutput:
    """The options that say how a plan is shown."""

    plot: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False, help="Draw the step's timeline into this picture.", callback=picture
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False


@shares_options
def plan(
    tokens: Annotated[
        list[str],
        typer.Argument(help="KV tokens of each stream: its prompt and what it has generated."),
    ],
    *,
    server: PlannedServer,
    rules: PlanOptions,
    shown_as: PlanOutput,
) -> None:
    """Plan which layers' KV stays on the device, so that decode steps of some streams are shortest.

    For streams whose KV does not fit: the others of their layers lie on the host and are copied
    while earlier layers compute. A plan only: a server with --tokenflow-layerwise, which is
    experimental, makes its own.
    """
    plot = shown_as.plot
    times = chosen_engine.needed_for_times(server.device, server.profile)
    need("A plan", *times, *(("matplotlib",) if plot is not None else ()))
    with failing("No plan"):
        lengths = _lengths(tokens)
        from tokenflow_sgl.cli.plan_output import planned

        target, memory = server.open()
        found = planned(target, lengths, memory, rules)
        if plot is not None and found.timeline is not None and not found.late:
            _draw(found, plot)
    _print(found, shown_as)


def _lengths(tokens: list[str]) -> list[int]:
    """The numbers, which typer would refuse without saying them."""
    if len(tokens) > _MOST_STREAMS:
        raise InputError(f"tokens has {len(tokens)} streams; allowed are at most {_MOST_STREAMS}")
    found = []
    for text in tokens:
        number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
        if not 1 <= number <= _MOST_TOKENS:
            raise InputError(
                f"tokens is {text[:40]!r}; allowed are whole numbers from 1 to {_MOST_TOKENS}"
            )
        found.append(number)
    return found


def _draw(found: Planned, plot: Path) -> None:
    from tokenflow_sgl.cli.plan_picture import draw

    plot.parent.mkdir(parents=True, exist_ok=True)
    draw(found, plot)


def _print(found: Planned, shown_as: PlanOutput) -> None:
    from tokenflow_sgl.cli.plan_output import changes, stream_table, summary

    if shown_as.as_json:
        from tokenflow_sgl.cli.plan_json import object_of

        typer.echo(json.dumps(object_of(found), indent=2))
    else:
        console = table_console()
        console.print(stream_table(found), highlight=False)
        for sentence in (*summary(found), *changes(found)):
            console.print(sentence, markup=False, highlight=False, soft_wrap=True)
    if found.timeline is None:
        fail("No stream runs: none fits the memory.", Exit.failed)
    if found.late:
        fail("No stream keeps the objective, even alone.", Exit.failed)
    if shown_as.plot is not None:
        Console(stderr=True).print(
            f"Drawn: {shown_as.plot}", markup=False, highlight=False, soft_wrap=True
        )
