"""Where a run is written: a folder of its own, never over another run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

RUNS = Path("replay-results")
"""Where runs go whose folder is not given."""


@contextlib.contextmanager
def new_folder(wanted: Path | None, name: str, runs: Path = RUNS) -> Iterator[Path]:
    """Make the folder now, for what cannot be written must be known before the work.

    Without a wanted one it is the first free `NAME-N` in `runs`. It is removed if nothing was
    written to it.

    Raises:
        OSError: It cannot be made, or the wanted one has something in it.
    """
    if wanted is None:
        folder = _free(name, runs)
    else:
        folder = wanted
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise FileExistsError(f"{folder} exists: a run is never written over another")
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()


def _free(name: str, runs: Path) -> Path:
    plain = "".join(char if char.isalnum() or char in "-_." else "-" for char in name)
    for number in itertools.count(1):
        folder = runs / f"{plain}-{number}"
        with contextlib.suppress(FileExistsError):
            folder.mkdir(parents=True)
            return folder
    raise AssertionError("numbers do not end")
