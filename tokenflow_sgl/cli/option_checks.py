"""Values of options that are refused before any work begins, with the option's name in front.

Each function is the `callback` of an option or argument. Ranges are typer's own `min` and `max`,
which `--help` shows; this module has checks that these cannot express.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import typer

_SMALLEST, _LARGEST = 1e-9, 1e9
_PICTURES = (".png", ".svg", ".pdf")


def finite(value: float | None) -> float | None:
    """A finite number. NaN is refused here because it passes comparisons with bounds."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not allowed; give a finite number")
    return value


def positive(value: float | None) -> float | None:
    """A number above 0 that is neither too small nor too large to calculate with."""
    if value is not None and not _SMALLEST <= value <= _LARGEST:
        raise typer.BadParameter(
            f"{value:g} is not allowed; give a number above 0, from {_SMALLEST:g} to {_LARGEST:g}"
        )
    return value


def address(url: str | None) -> str | None:
    """The base URL of a server."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        fine = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:  # a port that is no number, half an IPv6 address
        fine = False
    if not fine or any(letter.isspace() or not letter.isprintable() for letter in url):
        raise typer.BadParameter(f"{url!r} is no URL of a server; one is http://127.0.0.1:30000")
    return url


def output_file(path: Path | None) -> Path | None:
    """A file that can be written; missing folders are made later."""
    if path is not None:
        with _refused(path):
            if path.is_dir() or not path.name:
                raise ValueError("it is a folder")
            if not path.exists():
                _make_something(path.parent)
            elif not os.access(path, os.W_OK):
                raise ValueError("it is write-protected")
    return path


def output_folder(path: Path | None) -> Path | None:
    """A folder that can be written to; it need not exist yet."""
    if path is not None:
        with _refused(path):
            _make_something(path)
    return path


def picture(path: Path | None) -> Path | None:
    """A file for a picture, of a format that can be drawn."""
    if path is not None and path.suffix.lower() not in _PICTURES:
        raise typer.BadParameter(f"{path} is not allowed; its name must end in .png, .svg or .pdf")
    return output_file(path)


def _make_something(folder: Path) -> None:
    """Make something in a folder, or in the nearest folder above it that exists."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(f"{folder} is a file")
    with tempfile.TemporaryDirectory(dir=folder):
        pass


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise typer.BadParameter(f"{path} cannot be written: {reason}") from None
