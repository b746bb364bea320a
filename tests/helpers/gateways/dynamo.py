"""NVIDIA Dynamo: its frontend, and beside a server the sidecar that speaks SGLang's gRPC."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from gateways.environment import installed
from tokenflow_sgl.lab.demo.server import free_port

STARTING = 120.0
GRACE = "60"
"""Seconds in which a sidecar lets its streams end: after them it cuts them off as if complete."""


@contextlib.contextmanager
def dynamo(folder: Path, model: str, grpc_port: int, *options: str) -> Iterator[str]:
    """The address of a frontend that serves one server's model.

    Args:
        folder: For what they write, one each.
        model: As the server names it.
        grpc_port: The server's.
        options: Of `python -m dynamo.frontend`.
    """
    python, port = str(installed("python", "dynamo")), free_port()
    env = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **{"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": str(folder / "discovery")},
        "DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS": GRACE,
        "DYN_SGLANG_ENABLE_GENERATE": "1",
    }
    sidecar = ("-m", "dynamo.sglang.sidecar", "--grpc-endpoint", f"127.0.0.1:{grpc_port}")
    frontend = ("-m", "dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port))
    commands = {"sidecar": sidecar, "frontend": (*frontend, *options)}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, command in commands.items():
            with (folder / f"{name}.log").open("w") as log:
                made = subprocess.Popen([python, *command], env=env, stdout=log, stderr=log)
            running.append(made)
        url = f"http://127.0.0.1:{port}"
        _wait(url, model, running, folder)
        yield url
    finally:
        for each in reversed(running):
            each.terminate()
        for each in running:
            each.wait(STARTING)


def _wait(url: str, model: str, running: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Until the frontend has found the model."""
    end = time.monotonic() + STARTING
    while True:
        with contextlib.suppress(urllib.error.URLError, OSError, ValueError):
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                found = [each["id"] for each in json.load(answer)["data"]]
            if model in found:
                return
        ended = [each.args for each in running if each.poll() is not None]
        logs = [path.read_text()[-1000:] for path in folder.glob("*.log")]
        assert not ended, (ended, logs)
        assert time.monotonic() < end, f"Dynamo finds no model: {logs}"
        time.sleep(0.2)
