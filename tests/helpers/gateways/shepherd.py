"""smg, the Shepherd Model Gateway, and sglang-router, which it succeeds."""

from __future__ import annotations

import contextlib
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gateways.environment import installed
from tokenflow_sgl.lab.demo.server import free_port

STARTING = 120.0
PAIRED = ("--prefill", "--decode")
POLL = 1
"""Seconds between two looks at the servers' loads."""


@dataclass(frozen=True, slots=True)
class Shepherd:
    """A gateway that runs.

    Attributes:
        url: Where it takes requests.
        metrics: Its own page of metrics.
        process: Its program.
    """

    url: str
    metrics: str
    process: subprocess.Popen[bytes]


def shepherd(
    folder: Path, workers: Sequence[str], *options: str
) -> contextlib.AbstractContextManager[Shepherd]:
    """smg in front of servers that run.

    Args:
        folder: For its log.
        workers: Addresses of servers.
        options: Of `smg launch`; those of pairs are named here, by `--prefill` and `--decode`.
    """
    looks = ("--load-monitor-interval", str(POLL))
    return _launched(installed("smg"), folder, workers, *looks, *options)


def sglang_router(
    folder: Path, workers: Sequence[str], *options: str
) -> contextlib.AbstractContextManager[Shepherd]:
    """sglang-router, likewise; it counts the requests that it has sent and asks for no loads."""
    return _launched(installed("sglang-router", "router"), folder, workers, *options)


@contextlib.contextmanager
def _launched(
    program: Path, folder: Path, workers: Sequence[str], *options: str
) -> Iterator[Shepherd]:
    port, metrics = free_port(), free_port()
    command = [
        *(str(program), "launch", "--host", "127.0.0.1", "--port", str(port)),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
        *(*options, *(("--worker-urls", *workers) if workers else ())),
    ]
    with (folder / f"{program.name}.log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, running, len(workers) + sum(map(options.count, PAIRED)))
        yield Shepherd(url, f"http://127.0.0.1:{metrics}/metrics", running)
    finally:
        running.terminate()
        running.wait(60)


def _wait(url: str, running: subprocess.Popen[bytes], workers: int) -> None:
    """Until it is ready to send requests to that many servers."""
    end = time.monotonic() + STARTING
    while True:
        with (
            contextlib.suppress(urllib.error.URLError, OSError, ValueError),
            urllib.request.urlopen(f"{url}/workers", timeout=5) as answer,
        ):
            if answer.read().count(b'"is_healthy":true') >= workers:
                return
        assert running.poll() is None, "it has ended"
        assert time.monotonic() < end, "it finds no healthy servers"
        time.sleep(0.2)
