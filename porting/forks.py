"""A process that has SGLang imported, and whose forks are servers within seconds."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WARM = Path(__file__).parent.parent / "tests" / "warm"


@contextmanager
def warm_forks(folder: Path) -> Iterator[tuple[str, ...]]:
    """A launcher, to be followed by a module's name or a script's path; see warm/sglang_forks.py.

    folder: An empty one, for the socket.
    """
    path = folder / "socket"
    # What SGLang reads when it is imported.
    env = {**os.environ, "SGLANG_PLATFORM": "tokenflow_emu", "HF_HUB_OFFLINE": "1"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()  # a launcher that asks too early waits
        descriptor = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, str(WARM / "sglang_forks.py"), str(descriptor)],
            env=env,
            stdin=subprocess.DEVNULL,
            pass_fds=[descriptor],
            start_new_session=True,  # a terminal's Ctrl-C reaches only us
        )
    try:
        # Isolated and without site-packages, since it imports nothing: it starts at once.
        yield (sys.executable, "-I", "-S", str(WARM / "launch.py"), str(path))
    finally:
        process.kill()
        process.wait()
