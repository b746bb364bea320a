"""How every command fails: one sentence on standard error, and an exit code by kind of mistake."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import NoReturn

import typer
from rich.console import Console

from tokenflow_sgl.errors import FailedError, InputError, StoppedError


class Exit(IntEnum):
    """Exit codes, the same in all commands; docs/exit-codes.md explains them to users."""

    failed = 1
    """The command failed, or its answer is no: for example no server, or a server that ended."""
    usage = 2
    """The input cannot be used: an option, a file, a place to write to, a missing package."""
    invalid = 3
    """A run was written, but its figures must not be trusted."""
    interrupted = 130
    """Ctrl-C; what was measured until then is written."""


def fail(sentence: str, kind: Exit) -> NoReturn:
    """End the command with a sentence on standard error."""
    console = Console(stderr=True)
    console.print(sentence, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(kind)


@contextmanager
def failing(result: str = "") -> Iterator[None]:
    """End the command where its input cannot be used, its work fails, or Ctrl-C has ended it.

    Args:
        result: Begins the sentence and says what is missing, as in "No report".
    """
    before = f"{result}: " if result else ""
    try:
        yield
    except StoppedError as error:  # first: an error may be of several kinds
        fail(before + _sentence(str(error)), Exit.interrupted)
    except FailedError as error:
        fail(before + _sentence(str(error)), Exit.failed)
    except InputError as error:
        fail(before + _sentence(str(error)), Exit.usage)
    except OSError as error:  # of files: whether they can be written was checked before the work
        place = f"{error.filename}: " if error.filename else ""
        fail(before + _sentence(place + (error.strerror or str(error))), Exit.failed)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "\n")) else f"{text}."
