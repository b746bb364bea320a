"""All commands of the ``sh`` blocks of the docs, as bash itself takes them apart.

Each block is run by bash, in which every program is one that only writes down how it was called.
So quotes, line ends, variables, loops and `&&` mean what they mean to a reader's shell.
"""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "examples/**/*.md",
    "emulator/*.md",
    "traces/*.md",
    "benchmarks/**/README.md",
)
PAGES = sorted(str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(pattern))
PROGRAMS = (
    "tokenflow",
    "python",
    "pip",
    "make",
    "sglang",
    "curl",
    "docker",
    "kubectl",
    "smg",
    "git",
    "ssh",
    "tokenflow-tiny-model",
)
"""What the docs call; anything else is noticed."""
_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<kind>sh|shell|bash|console)\n(?P<text>.*?)^ *```", re.M | re.S
)
_STUB = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$PWD" "$SGLANG_PLATFORM" "$@" > "$DOCUMENTED/$BASHPID"
"""
_BEFORE = """
command_not_found_handle() { printf '%s\\0' unknown "$PWD" "" "$@" > "$DOCUMENTED/$BASHPID"; }
RID=7f3a91
"""
_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Call:
    """One program as a block calls it.

    Attributes:
        page: Where it is documented, relative to the repository.
        program: "tokenflow", "python", ...; "unknown": one that is not in `PROGRAMS`.
        folder: Where it is called, relative to the repository.
        words: What follows the program's name.
    """

    page: str
    program: str
    folder: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {self.program} {' '.join(self.words)}"


class BlockError(AssertionError):
    """Bash does not understand a block."""


def blocks(text: str) -> list[str]:
    """The blocks of shell commands of a page; of a session only what is typed, behind a `$`."""
    return [
        "".join(re.findall(r"^\$ (.*\n)", each["text"], re.M))
        if each["kind"] == "console"
        else each["text"]
        for each in _BLOCK.finditer(text)
    ]


@functools.cache
def calls_of(page: str) -> tuple[Call, ...]:
    """What the blocks of a page call, in no order that means anything."""
    return tuple(
        call for block in blocks((ROOT / page).read_text()) for call in calls_in(block, page)
    )


def calls_in(block: str, page: str) -> list[Call]:
    """What one block calls.

    Raises:
        BlockError: Bash does not understand it.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        made, stubs, here = root / "calls", root / "bin", root / "here"
        for each in (made, stubs, here, here / "grafana"):
            each.mkdir()
        for name in PROGRAMS:
            (stubs / name).write_text(_STUB)
            (stubs / name).chmod(0o755)
        (root / "before").write_text(_BEFORE)
        done = subprocess.run(
            ["/bin/bash", "-e", "-c", f"{block}\nwait"],
            env={"PATH": str(stubs), "DOCUMENTED": str(made), "BASH_ENV": str(root / "before")},
            cwd=here,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
        if done.returncode or done.stderr:
            raise BlockError(f"{page}: bash says {done.stderr or done.returncode} of\n{block}")
        found = [path.read_text().split("\0")[:-1] for path in sorted(made.iterdir())]
        return [
            Call(page, program, str(Path(where).relative_to(here)), tuple(words))
            for program, where, _, *words in found
        ]
