"""Two versions of the package, measured in turns: a process for each, which answers when asked."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
"""The repository."""


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The repository as of a commit, in a folder of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


class Asked:
    """A process that has imported the package of one tree, and answers line by line in JSON.

    Args:
        script: What it runs, with options.
        tree: A checked-out repository.
    """

    def __init__(self, script: Sequence[str], tree: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *script],
            env={**os.environ, "PYTHONPATH": str(tree)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def ask(self, line: str) -> Any:
        """Its answer to this line."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(line, file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())
