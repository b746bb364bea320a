"""What tests of several packages share: states, and servers that start fast."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import states

from tokenflow_sgl.contract import State

pytest_plugins = ["servers.fixtures"]

WARM = Path(__file__).parent / "warm"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start no SGLang come first: a mistake in the rest of the package shows early."""
    items.sort(key=lambda item: item.get_closest_marker("engine") is not None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that would start SGLang and is not marked `engine`: `make check` runs it."""
    if "warm" in getattr(item, "fixturenames", ()) and item.get_closest_marker("engine") is None:
        pytest.fail("it starts SGLang and is not marked engine", pytrace=False)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ...]]:
    """A launcher for `SglangServer`, to be followed by a module's name or a script's path.

    Its servers have SGLang imported already; see warm/sglang_forks.py.
    """
    path = tmp_path_factory.mktemp("warm") / "socket"
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


# Of session scope, so that hypothesis accepts them.
@pytest.fixture(scope="session")
def make_stream() -> Callable[..., dict[str, Any]]:
    """`make_stream(phase, **columns)`; slack is in seconds from now."""
    return states.stream


@pytest.fixture(scope="session")
def make_state() -> Callable[..., State]:
    """`make_state(rows, **what differs)`; the slot of row i is 10 + i."""
    return states.state
