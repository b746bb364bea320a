"""A file that takes the place of another one only when all of it is written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file beside `path`, which becomes `path` at the end; after an error it is removed.

    What is no regular file, such as /dev/stdout, is written to directly.

    Raises:
        OSError: It cannot be written.
    """
    target = path.resolve()  # a link stays one
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    beside = target.with_name(f".tokenflow-{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
