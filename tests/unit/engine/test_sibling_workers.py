"""What workers of one launch tell each other, and what they do not listen to."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from tokenflow_sgl.engine.frontend.sibling_workers import Siblings, _is_ours


class Worker(Siblings):
    """One that remembers what it hears, and can stop to listen."""

    all_of_them: ClassVar[list[Worker]] = []

    def __init__(self, launch: str, workers: int = 3) -> None:
        super().__init__(launch, workers)
        self.heard: list[tuple[str, float]] = []
        self.all_of_them.append(self)

    def stops(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()

    def listens(self) -> Worker:
        self.listen(lambda rid, rate: self.heard.append((rid, rate)))
        return self


@pytest.fixture
def launch() -> str:
    return secrets.token_hex(8)


def run(telling: Callable[[], Any]) -> Any:
    async def told() -> Any:
        found = telling()
        await asyncio.sleep(0.05)
        while Worker.all_of_them:
            Worker.all_of_them.pop().stops()
        return found

    return asyncio.run(told())


def test_all_that_listen_hear(launch) -> None:
    def telling() -> list[Worker]:
        workers = [Worker(launch).listens(), Worker(launch).listens(), Worker(launch)]
        other = Worker(secrets.token_hex(8)).listens()
        workers[2].tell("a", 20.0)
        workers[0].tell("ü/ß", 0)
        return [*workers, other]

    *workers, other = run(telling)
    assert [worker.heard for worker in workers] == [[("a", 20.0), ("ü/ß", 0.0)]] * 2 + [[]]
    assert other.heard == []


def test_a_worker_listens_once_and_no_more_of_them_than_there_are(launch, caplog) -> None:
    def telling() -> list[Worker]:
        workers = [Worker(launch, 1).listens().listens(), Worker(launch, 1).listens()]
        workers[1].tell("a", 1.0)
        return workers

    first, second = run(telling)
    assert first.heard == [("a", 1.0)] and second.heard == []
    assert "do not reach deposits of this one" in caplog.text


def test_nobody_listens(launch, caplog) -> None:
    Siblings(launch, 2).tell("a", 1.0)
    assert not caplog.text


def test_the_name_is_free_when_its_process_has_ended(launch) -> None:
    script = (
        "import asyncio, os, sys\n"
        "from tokenflow_sgl.engine.frontend.sibling_workers import Siblings\n"
        "async def main():\n"
        "    Siblings(sys.argv[1], 1).listen(print)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, launch], timeout=120)
    assert done.returncode == -9

    def telling() -> Worker:
        worker = Worker(launch, 1).listens()
        worker.tell("a", 1.0)
        return worker

    assert run(telling).heard == [("a", 1.0)]


@pytest.mark.parametrize(
    "news",
    [
        b"",
        b"\xff",
        b"[",
        b"7",
        b'["a"]',
        b'["a", "fast"]',
        b'["a", true]',
        b'["a", -1]',
        b'["a", 5000]',
        b'["a", NaN]',
        b'["a", Infinity]',
        b"[1, 5]",
        b'["a", 5, 6]',
        b'{"a": 5}',
        b"[" * 5000,
        b'["a", ' + b"9" * 400 + b"]",
    ],
)
def test_what_is_no_rate_is_not_heard(launch, news) -> None:
    def telling() -> Worker:
        worker = Worker(launch, 1).listens()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(news, f"\0tokenflow-{launch}-0")
        worker.tell("b", 2.0)
        return worker

    assert run(telling).heard == [("b", 2.0)]


def test_other_users_are_not_heard() -> None:
    def said(user: int) -> list[tuple[int, int, bytes]]:
        credentials = b"".join(n.to_bytes(4, sys.byteorder) for n in (1, user, 0))
        return [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)]

    assert _is_ours(said(os.getuid()))
    assert not _is_ours(said(os.getuid() + 1))
    assert not _is_ours([])
