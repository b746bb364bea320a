"""The command line's root: one file per subcommand, put together here."""

from __future__ import annotations

from typing import Annotated

import typer

from tokenflow_sgl import __version__
from tokenflow_sgl.cli.demo import demo
from tokenflow_sgl.cli.docs import docs
from tokenflow_sgl.cli.doctor import doctor

app = typer.Typer(
    name="tokenflow",
    help="Buffer-aware preemptive scheduling for streaming LLM serving on SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)
app.command()(demo)
app.command()(doctor)
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
