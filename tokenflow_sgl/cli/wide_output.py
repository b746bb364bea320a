"""Consoles for tables: a terminal has its width, a file or a pipe gets room for whole tables."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

Everything = Annotated[
    bool, typer.Option("--all", help="Show figures without a clear difference, too.")
]
"""Whether the tables of a comparison have all rows."""

_FILE_WIDTH = 110


def table_console() -> Console:
    """A console on stdout; `COLUMNS` sets its width, as everywhere, where it is no terminal."""
    console = Console()
    if not console.is_terminal and not os.environ.get("COLUMNS", "").isdecimal():
        console.width = _FILE_WIDTH
    return console
