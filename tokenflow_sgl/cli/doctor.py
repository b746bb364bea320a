"""``tokenflow doctor``: would ``--scheduler tokenflow`` start here, and if not, why not."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import logging
import os
import platform
import shlex
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.cli.checks import address
from tokenflow_sgl.cli.failing import Exit, fail

if TYPE_CHECKING:
    from tokenflow_sgl.engine.seams import Seam

PLUGIN = "tokenflow"
"""Name of our entry point in `PLUGIN_GROUP`."""
PLUGIN_GROUP = "sglang.srt.plugins"
PLATFORM_GROUP = "sglang.srt.platforms"
_OURS = "tokenflow_sgl."
_NAME_WIDTH = len("tokenflow-sgl-emulator")
"""Width of the first column of all tables, so that they line up."""
_INSTALL = "pip install 'tokenflow-sgl[sglang]'"
_REINSTALL = "install tokenflow-sgl again, into the environment that runs SGLang"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    found: what is there. problem: why the scheduler would not start with it, or None.
    step: what to do about the problem. note: a remark that stops nothing.
    """

    name: str
    found: str
    problem: str | None = None
    step: str = ""
    note: str = ""


def doctor(
    seams: Annotated[
        bool,
        typer.Option(
            "--seams",
            help="Show every SGLang internal that this package uses, not only broken ones.",
        ),
    ] = False,
    launch_options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- [LAUNCH OPTIONS]",
            help="Options for python -m sglang.launch_server.",
        ),
    ] = None,
    live: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=address,
            help="Examine a running server instead: its streams, the measured rate of its link to "
            "host memory, and the cost of its context switches.",
        ),
    ] = None,
) -> None:
    """Tell whether --scheduler tokenflow would start in this environment, and why not.

    Prints the versions, whether SGLang will load the plugin, every SGLang internal that this
    package uses and that has changed, and the device that SGLang finds. With the options of a
    launch, also what SGLang or this package would refuse of them. Starts no server, loads no
    weights, downloads nothing. Exits with 0 if the scheduler would start, else with 1. Example:

    tokenflow doctor -- --model-path Qwen/Qwen3-8B --scheduler tokenflow --tp-size 2

    With --live, prints what a running server has measured. Exits with 1 if the server does not
    answer or its policy fails.
    """
    console = Console()
    if live is not None and launch_options:
        fail("--live examines a running server: leave out the launch options.", Exit.usage)
    if live is not None:
        from tokenflow_sgl.cli.doctor_live import examine

        examine(live, console)
        return
    checks = [_sglang(), _entry_point(), _allowlist(), _platform(), _distribution()]
    console.print(_overview(checks))

    if not any(check.name in ("sglang", "platform") and check.problem for check in checks):
        with _working("Importing SGLang"):
            states = _seams()
        check = _seam_check(states)
        checks.append(check)
        console.print(f"Seams: {check.found}", markup=False, highlight=False, soft_wrap=True)
        shown = [state for state in states if seams or state[1]]
        if shown:
            console.print(_seam_table(shown))
        if not any(check.problem for check in checks):
            with _working("Trying the launch"):
                tried = _launch(launch_options)
            console.print(_overview_of(tried))
            checks += tried

    failed = next((check for check in checks if check.problem), None)
    if failed is None:
        notes = "".join(f" {check.note}" for check in checks if check.note)
        verdict, style = f"Active with --scheduler tokenflow.{notes}", "bold green"
    else:
        verdict, style = f"Not active: {failed.problem}. Next: {failed.step}.", "bold red"
    console.print(verdict, style=style, markup=False, highlight=False, soft_wrap=True)
    if failed is not None:
        raise typer.Exit(Exit.failed)


# ---- versions -----------------------------------------------------------------------


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _overview(checks: list[Check]) -> Table:
    """Versions and checks as one table; problems are red."""
    table = _pairs()
    table.add_row("python", f"{platform.python_version()} ({sys.executable})")
    # SGLang has a row of its own among the checks.
    for name in ("tokenflow-sgl", "tokenflow-sgl-emulator", "torch"):
        version = _version(name)
        if version is not None or name != "tokenflow-sgl-emulator":
            table.add_row(name, version or "not installed")
    return _with_checks(table, checks)


def _overview_of(checks: list[Check]) -> Table:
    return _with_checks(_pairs(), checks)


def _pairs() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(min_width=_NAME_WIDTH)
    table.add_column(overflow="fold")
    return table


def _with_checks(table: Table, checks: list[Check]) -> Table:
    for check in checks:
        style = "red" if check.problem else None
        table.add_row(check.name, Text(check.found), style=style)
    return table


# ---- will SGLang load the plugin ----------------------------------------------------


def _sglang() -> Check:
    from tokenflow_sgl.engine import seams

    version = seams.installed_sglang()
    supported = seams.SUPPORTED_SGLANG
    if version is None:
        return Check(
            "sglang",
            "not installed",
            "SGLang is not installed",
            f"{_INSTALL} installs SGLang {supported}",
        )
    if version == supported:
        return Check("sglang", f"{version}, the supported version")
    return Check(
        "sglang",
        f"{version}; supported is {supported}",
        note=f"But it is tested with SGLang {supported} only, and this is {version}.",
    )


def _entry_point() -> Check:
    ours = [point for point in _points(PLUGIN_GROUP) if _is_ours(point)]
    if not ours:
        return Check(
            "plugin",
            f"no entry point {PLUGIN} in {PLUGIN_GROUP}",
            f"the entry point {PLUGIN} in the group {PLUGIN_GROUP} is not registered",
            _REINSTALL,
        )
    return Check("plugin", f"{ours[0].name} = {ours[0].value}, in {PLUGIN_GROUP}")


def _allowlist() -> Check:
    text = os.environ.get("SGLANG_PLUGINS", "")
    if not text:
        return Check("SGLANG_PLUGINS", "not set: every plugin is loaded")
    if PLUGIN in {name.strip() for name in text.split(",")}:
        return Check("SGLANG_PLUGINS", f"{text}: lists {PLUGIN}")
    return Check(
        "SGLANG_PLUGINS",
        f"{text}: leaves out {PLUGIN}",
        f"SGLANG_PLUGINS={text} leaves {PLUGIN} out, so SGLang does not load it",
        f"add {PLUGIN} to SGLANG_PLUGINS, or unset it",
    )


def _platform() -> Check:
    selected = os.environ.get("SGLANG_PLATFORM", "")
    if not selected:
        return Check("platform", "SGLANG_PLATFORM is not set: SGLang finds the device itself")
    known = {point.name: point for point in _points(PLATFORM_GROUP)}
    if selected in known:
        return Check("platform", f"{selected}, by SGLANG_PLATFORM ({known[selected].value})")
    return Check(
        "platform",
        f"{selected}, by SGLANG_PLATFORM: not installed",
        f"SGLANG_PLATFORM={selected} names no installed platform, and SGLang stops at that",
        f"unset SGLANG_PLATFORM or set it to one of: {', '.join(sorted(known)) or 'none there'}",
    )


def _distribution() -> Check:
    """SGLang skips a distribution that has a platform of another name than the selected one."""
    selected = os.environ.get("SGLANG_PLATFORM", "")
    mine = {point.dist.name for point in _points(PLUGIN_GROUP) if _is_ours(point) and point.dist}
    others = [
        point.name
        for point in _points(PLATFORM_GROUP)
        if point.dist and point.dist.name in mine and point.name != selected
    ]
    if selected and others:
        return Check(
            "distribution",
            f"skipped: it brings the platform {others[0]}",
            f"SGLANG_PLATFORM={selected} makes SGLang skip the distribution of {PLUGIN}, "
            f"which brings the platform {others[0]}",
            f"{_REINSTALL}: as published it brings no platform",
        )
    return Check("distribution", "not skipped by SGLANG_PLATFORM")


def _points(group: str) -> list[importlib.metadata.EntryPoint]:
    return list(importlib.metadata.entry_points(group=group))


def _is_ours(point: importlib.metadata.EntryPoint) -> bool:
    return point.name == PLUGIN and point.value.startswith(_OURS)


# ---- would it launch ----------------------------------------------------------------


def _launch(options: list[str] | None) -> list[Check]:
    """Device and options, as a launch would find them; without options only the device."""
    from tokenflow_sgl.engine.launching import NO_MODEL, Launch, try_launch

    given = options if options else ["--model-path", NO_MODEL, "--scheduler", "tokenflow"]
    try:
        with _silence():
            launch = try_launch(given)
    except Exception as error:  # SGLang's modules run their own code when imported
        launch = Launch(refusal=f"SGLang cannot be asked: {type(error).__name__}: {error}")
    refusal = launch.refusal
    checks = []
    if launch.device is not None or launch.no_device:
        step = (
            "run it where the accelerator is, name a platform with SGLANG_PLATFORM, or try "
            "tokenflow serve-emulated, which needs none"
        )
        none = refusal if launch.no_device else None
        checks.append(Check("device", launch.device or "none", none, step))
    if options:
        unknown = "But what depends on the model was not checked." if launch.elsewhere else ""
        checks.append(Check("model", launch.model, note=unknown))
        text = shlex.join(options)
        if refusal is not None and not launch.no_device:
            checks.append(Check("options", text, refusal, "change what it names"))
        elif not launch.scheduler:
            checks.append(
                Check(
                    "options",
                    text,
                    "these options start SGLang's own scheduler",
                    "add --scheduler tokenflow",
                )
            )
        else:
            checks.append(Check("options", text))
    elif refusal is not None and not launch.no_device:
        checks.append(Check("options", "none", refusal, "start without --scheduler tokenflow"))
    return checks


@contextlib.contextmanager
def _working(what: str) -> Iterator[None]:
    """Say what takes so long: a spinner on a terminal, a line on stderr elsewhere."""
    # A console of its own on stderr, because output of imported modules is discarded meanwhile.
    console = Console(file=sys.stderr)
    if console.is_terminal:
        with console.status(f"{what} ..."):
            yield
    else:
        console.print(f"{what} ...", highlight=False)
        yield


# ---- seams --------------------------------------------------------------------------


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard warnings, log lines and prints of modules that are imported meanwhile."""
    before = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(before)


def _seams() -> list[tuple[Seam, str | None]]:
    """Every SGLang internal that is used, with what is wrong with it or None. Imports SGLang."""
    from tokenflow_sgl.engine import seams

    states: list[tuple[Seam, str | None]] = []
    with _silence():
        for seam in seams.SEAMS:
            try:
                trouble = seams.problem(seam)
            except Exception as error:  # SGLang's modules run their own code when imported
                trouble = f"{seam.target} cannot be looked at: {type(error).__name__}: {error}"
            states.append((seam, trouble))
    return states


def _seam_check(states: list[tuple[Seam, str | None]]) -> Check:
    from tokenflow_sgl.engine import seams

    broken = [trouble for _, trouble in states if trouble]
    if not broken:
        return Check("seams", f"all {len(states)} hold")
    return Check(
        "seams",
        f"{len(broken)} of {len(states)} broken",
        broken[0],
        f"install SGLang {seams.SUPPORTED_SGLANG} or start without --scheduler tokenflow",
    )


def _seam_table(states: list[tuple[Seam, str | None]]) -> Table:
    table = Table("target", "kind", "why", "state", box=None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for seam, trouble in states:
        state = trouble.removeprefix(seam.target).strip() if trouble else "ok"
        table.add_row(seam.target, seam.kind, seam.why, state, style="red" if trouble else None)
    return table
