"""``tokenflow doctor``: would ``--scheduler tokenflow`` start here, and if not, why not."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tokenflow_sgl.cli import doctor_install, doctor_launch
from tokenflow_sgl.cli.doctor_install import Check
from tokenflow_sgl.cli.failing import Exit, fail
from tokenflow_sgl.cli.option_checks import address
from tokenflow_sgl.cli.shared_options import shares_options

_UNPROVED = "--tokenflow-unproved-sglang"
"""Option of a launch with which another SGLang than the proved one stops nothing."""
_NAME_WIDTH = len("tokenflow-sgl-emulator")
"""Width of the first column of all tables, so that they line up."""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """The options that say what is judged: this machine, a launch elsewhere, or a server."""

    seams: Annotated[
        bool,
        typer.Option(
            "--seams",
            help="Show every SGLang internal that this package uses, not only broken ones.",
        ),
    ] = False
    elsewhere: Annotated[
        bool,
        typer.Option(
            "--elsewhere",
            help="The launch is for another machine: judge its options; neither the device nor "
            "the model that it names needs to be here.",
        ),
    ] = False
    lines: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="Judge a file of launches instead, one a line as in a shell, each as with "
            "--elsewhere; '-' reads standard input.",
            allow_dash=True,
        ),
    ] = None
    live: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=address,
            help="Examine a running server instead: its streams, the measured rate of its link to "
            "host memory, and the cost of its context switches.",
        ),
    ] = None

    def refuse_contradictions(self, launch_options: list[str] | None) -> None:
        """End the command with a usage error if options exclude each other."""
        if self.live is not None and launch_options:
            fail("--live examines a running server: leave out the launch options.", Exit.usage)
        if self.lines is not None and (self.live is not None or launch_options):
            fail(
                "--lines reads launches from a file: leave out --live and launch options.",
                Exit.usage,
            )
        if self.elsewhere and not launch_options and self.lines is None:
            fail(
                "--elsewhere judges launch options, and there are none; give them after --.",
                Exit.usage,
            )


@shares_options
def doctor(
    launch_options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- [LAUNCH OPTIONS]",
            help="Options for python -m sglang.launch_server.",
        ),
    ] = None,
    *,
    asked: DoctorOptions,
) -> None:
    """Tell whether --scheduler tokenflow would start in this environment, and why not.

    Prints the versions, whether SGLang will load the plugin, every SGLang internal that this
    package uses and that has changed, and the device that SGLang finds. With the options of a
    launch, also what SGLang or this package would refuse of them, and what becomes of prefixes in
    HiCache's storage. Starts no server, loads no
    weights, downloads nothing. Exits with 0 if the scheduler would start, else with 1. Example:

    tokenflow doctor -- --model-path Qwen/Qwen3-8B --scheduler tokenflow --tp-size 2

    With --elsewhere and --lines, judges options alone, as if --scheduler tokenflow were among
    them: SGLang's parser and this package's own refusals, all of them. --lines prints a table and
    counts, and exits with 0 if every line would start. Variables of the shell get their values
    from the environment.

    With --live, prints what a running server has measured. Exits with 1 if the server does not
    answer or its policy fails.
    """
    console = Console()
    asked.refuse_contradictions(launch_options)
    if asked.live is not None:
        from tokenflow_sgl.cli.doctor_live import examine

        examine(asked.live, console)
        return
    if asked.lines is not None:
        from tokenflow_sgl.cli.doctor_lines import examine_lines

        examine_lines(asked.lines, console)
        return
    checks = doctor_install.installation(unproved=_takes_any(launch_options or []))
    console.print(_overview(checks))
    if not any(check.name in ("sglang", "platform") and check.problem for check in checks):
        checks += _try(launch_options, asked, checks, console)
    _conclude(checks, console)


def _takes_any(launch_options: list[str]) -> bool:
    """Whether a launch starts on an SGLang that was not proved: by option, or by `--config`."""
    if _UNPROVED in launch_options:
        return True
    for option, value in itertools.pairwise([*launch_options, ""]):
        name, _, own = option.partition("=")
        if name == "--config":
            import yaml

            with contextlib.suppress(OSError, ValueError, yaml.YAMLError):  # SGLang says why
                given = yaml.safe_load(Path(own or value).read_text(encoding="utf-8"))
                if isinstance(given, dict) and given.get(_UNPROVED.removeprefix("--")) is True:
                    return True
    return False


def _try(
    launch_options: list[str] | None, asked: DoctorOptions, before: list[Check], console: Console
) -> list[Check]:
    """Check SGLang's internals, and the launch if nothing has a problem until there.

    Args:
        launch_options: Of the launch; None: there are none.
        asked: Whether unbroken internals are shown, too, and options are judged alone.
        before: What was checked before.
        console: Where both are shown.
    """
    with _working("Reading SGLang"):
        states = doctor_launch.seam_states()
    check = doctor_launch.seam_check(states)
    console.print(f"Seams: {check.found}", markup=False, highlight=False, soft_wrap=True)
    shown = [state for state in states if asked.seams or state[1]]
    if shown:
        console.print(doctor_launch.seam_table(shown))
    if any(each.problem for each in (*before, check)):
        return [check]
    with _working("Trying the launch"):
        if asked.elsewhere and launch_options:
            tried = doctor_launch.elsewhere_checks(launch_options)
        else:
            tried = doctor_launch.launch_checks(launch_options)
    console.print(_with_checks(_pairs(), tried))
    return [check, *tried]


def _conclude(checks: list[Check], console: Console) -> None:
    """Print the verdict; ends the command with 1 if a check has a problem."""
    failed = next((check for check in checks if check.problem), None)
    if failed is None:
        notes = "".join(f" {check.note}" for check in checks if check.note)
        active = next((check.active for check in checks if check.active), "--scheduler tokenflow")
        verdict, style = f"Active with {active}.{notes}", "bold green"
    else:
        verdict, style = f"Not active: {failed.problem}. Next: {failed.step}.", "bold red"
    console.print(verdict, style=style, markup=False, highlight=False, soft_wrap=True)
    if failed is not None:
        raise typer.Exit(Exit.failed)


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
