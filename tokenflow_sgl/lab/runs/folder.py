"""Where a run is written: a folder of its own, never over another run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from tokenflow_sgl.errors import InputError


class FolderError(InputError):
    """A run cannot be written there; the message says where and why."""


RUNS = Path("replay-results")
"""Where runs go when no folder is given."""


@contextlib.contextmanager
def new_folder(wanted: Path | None, name: str, runs: Path = RUNS) -> Iterator[Path]:
    """Make the folder now, for what cannot be written must be known before the work.

    Without a wanted one it is the first free `NAME-N` in `runs`. If nothing was written to
    it, all folders that were made for it are removed.

    Raises:
        FolderError: It cannot be made, or the wanted one has something in it.
    """
    made = _missing(runs if wanted is None else wanted)
    try:
        if wanted is None:
            folder = _free(name, runs)
            made.insert(0, folder)
        else:
            folder = wanted
            if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
                raise FolderError(f"{folder} exists: a run is never written over another")
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{wanted or runs} cannot be written: {error.strerror}") from None
    try:
        yield folder
    finally:
        for each in made:
            if any(each.iterdir()):
                break
            each.rmdir()


def _missing(folder: Path) -> list[Path]:
    """The folder and those above it, as far as they are not there."""
    return list(itertools.takewhile(lambda each: not each.exists(), (folder, *folder.parents)))


def _free(name: str, runs: Path) -> Path:
    plain = "".join(char if char.isalnum() or char in "-_." else "-" for char in name)
    for number in itertools.count(1):
        folder = runs / f"{plain}-{number}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("numbers do not end")
