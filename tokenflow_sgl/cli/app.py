"""The root of the command line; each subcommand has a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from tokenflow_sgl import __version__
from tokenflow_sgl.cli.advise import advise
from tokenflow_sgl.cli.capacity import capacity
from tokenflow_sgl.cli.dashboard import dashboard_app
from tokenflow_sgl.cli.demo import demo
from tokenflow_sgl.cli.docs import docs
from tokenflow_sgl.cli.doctor import doctor
from tokenflow_sgl.cli.explain import explain
from tokenflow_sgl.cli.model import model
from tokenflow_sgl.cli.plan_placement import plan
from tokenflow_sgl.cli.profile import profile_app
from tokenflow_sgl.cli.replay import replay
from tokenflow_sgl.cli.report import report
from tokenflow_sgl.cli.serve_emulated import serve_emulated
from tokenflow_sgl.cli.simulate import simulate
from tokenflow_sgl.cli.top import top
from tokenflow_sgl.cli.trace import trace_app
from tokenflow_sgl.cli.tune import tune

app = typer.Typer(
    name="tokenflow",
    help="Buffer-aware preemptive scheduling for streaming LLM serving on SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(demo)
app.command()(doctor)
app.command()(top)
app.command()(explain)
app.command()(replay)
app.command()(report)
app.command()(advise)
app.command()(simulate)
app.command()(tune)
app.command()(capacity)
app.command()(plan)
app.add_typer(trace_app, name="trace")
app.command()(serve_emulated)
app.command()(model)
app.add_typer(profile_app, name="profile")
app.add_typer(dashboard_app, name="dashboard")
app.command(hidden=True)(docs)


def main() -> None:
    """Run the ``tokenflow`` command."""
    app()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tokenflow-sgl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Buffer-aware preemptive scheduling for streaming LLM serving on SGLang."""
