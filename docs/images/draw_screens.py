"""Draws the pictures of docs/dashboards.md from two live servers on an emulated device.

    .venv/bin/python docs/images/draw_screens.py

Needs Prometheus (its folder in the PATH) and a few minutes on a quiet machine. Starts stock's
policy and the working-set policy with the device's own memory and default options, lets both serve
the same readers, and keeps what the commands of the page show. Look at the pictures afterwards.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tokenflow_sgl.lab.demo.server import SglangServer

HERE = Path(__file__).parent
GRAFANA = HERE.parents[1] / "grafana" / "prometheus"
TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
DEVICE = ("--device", "rtx4090", "--model", "qwen2.5-7b")
SHARED = ("--enable-metrics",)
STOCK = ("--scheduler", "tokenflow", "--tokenflow-policy", "stock", "--tokenflow-hicache", "off")
WORKLOAD = "4090-c?duration=300&share=0.3"
"""Three readers in five seconds: one and a half times as many as stock SGLang serves at once."""
SECONDS = 290.0
"""Of the replay, which are drawn: its last readers have not come by then, and both are busy."""
BOARDS = {
    "dashboard-overview": "tokenflow-overview",
    "dashboard-scheduler": "tokenflow-scheduler",
    "dashboard-replay": "tokenflow-replay",
}
"""Our names of the pictures, and those that `tokenflow dashboard render` gives them."""
WIDTH = 110
"""Columns of a terminal."""


def main() -> None:
    """Start the servers, let them serve, draw what is seen meanwhile and afterwards."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        decisions = folder / "decisions.jsonl"
        ours = ("--scheduler", "tokenflow", "--tokenflow-decision-log", str(decisions))
        stock, candidate = (
            stack.enter_context(server(folder / f"log-{side}", options))
            for side, options in (("stock", STOCK), ("ours", ours))
        )
        source = stack.enter_context(prometheus(folder, stock, candidate))
        begun = time.monotonic()
        for side, url in enumerate((stock, candidate)):
            stack.enter_context(replay(url, folder / f"run-{side}"))
        time.sleep(40.0)
        picture("top", TOKENFLOW, "top", candidate, "--once")
        time.sleep(max(begun + SECONDS - time.monotonic(), 0.0))
        minutes = (time.monotonic() - begun + 10.0) / 60.0
        sides = ("--baseline", stock, "--candidate", candidate)
        instances = [side.removeprefix("http://") for side in sides]
        of_ours = ("--instance", candidate.removeprefix("http://"))
        render = ("dashboard", "render", source, "--last", f"{minutes:.2f}", *instances, *of_ours)
        subprocess.run([TOKENFLOW, *render, "--output", str(folder / "boards")], check=True)
        for ours_, theirs in BOARDS.items():
            shutil.copy(folder / "boards" / f"{theirs}.png", HERE / f"{ours_}.png")
        picture("explain", TOKENFLOW, "explain", str(decisions), lines=40)


@contextlib.contextmanager
def server(log: Path, options: tuple[str, ...]) -> Iterator[str]:
    """A server on the emulated device; its base URL."""
    launcher = [TOKENFLOW, "serve-emulated", *DEVICE, "--"]
    flags = (*SHARED, *options)
    with SglangServer(None, flags, launcher=launcher, log_path=log, startup_timeout_s=600) as up:
        yield str(up.url)


@contextlib.contextmanager
def prometheus(folder: Path, *urls: str) -> Iterator[str]:
    """A Prometheus that scrapes these servers every five seconds, with our rules; its base URL."""
    targets = ", ".join(f'"{url.removeprefix("http://")}"' for url in urls)
    text = (GRAFANA / "prometheus.yml").read_text()
    text = text.replace('"127.0.0.1:30000"', targets).replace(
        "scrape_interval: 15s", "scrape_interval: 5s"
    )
    (folder / "prometheus.yml").write_text(text)
    shutil.copy(GRAFANA / "rules.yml", folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    found = shutil.which("prometheus")
    if found is None:
        sys.exit("prometheus is not in the PATH; install it, or name its folder there.")
    command = [found, f"--config.file={folder / 'prometheus.yml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log-prometheus").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def replay(url: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Readers who come one by one, faster than they can be served."""
    command = [TOKENFLOW, "replay", WORKLOAD, "--url", url, "--output", str(output)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def picture(name: str, *command: str, lines: int | None = None) -> None:
    """What a command shows in a terminal, its last `lines`, as NAME.svg."""
    env = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(WIDTH), "TERM": "xterm-256color"}
    shown = subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout
    kept = shown.splitlines()[-lines:] if lines else shown.splitlines()
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(kept)))
    title = " ".join(["tokenflow", *command[1:2]])
    (HERE / f"{name}.svg").write_text(console.export_svg(title=title))


if __name__ == "__main__":
    main()
