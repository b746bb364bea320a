"""Programs that run beside servers, in an environment of their own that is made once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOCKS = ROOT / "requirements"
HOME = Path.home() / ".cache" / "tokenflow-gateways"


def installed(name: str, lock: str = "gateways") -> Path:
    """A program of a lock file's environment; skips the test where it cannot be installed."""
    file = LOCKS / f"{lock}.txt"
    folder = HOME / hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    program = folder / "bin" / name
    if not program.exists():
        uv = Path(sys.executable).parent / "uv"
        making = folder.with_suffix(f".{os.getpid()}")
        done = [
            subprocess.run(command, capture_output=True, text=True, check=False)
            for command in (
                [str(uv), "venv", "--quiet", "--relocatable", str(making)],
                [str(uv), "pip", "sync", "--require-hashes", "--python", str(making), str(file)],
            )
        ]
        if any(each.returncode for each in done):
            pytest.skip(f"{name} cannot be installed: {done[-1].stderr[-300:]}")
        with contextlib.suppress(OSError):  # another worker was first
            making.rename(folder)
    return program
