"""How even streams from a token deposit are: `python benchmarks/deposit_gaps.py`.

Starts real SGLang with a tiny model on the CPU, and reads streams of it with clients that have no
buffer, with and without a deposit. Of each stream it takes the times between two chunks while the
deposit lasts: from the first token to the burst at the end. Network, event loops and timers are in
it, and so is everything else that this machine does meanwhile.
"""

from __future__ import annotations

import argparse
import http.client
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl_emulator.models import make_tiny_model

PROMPT = list(range(20, 60))
FLAGS = ("--scheduler", "tokenflow", "--hicache-ratio", "2", "--max-total-tokens", "20000")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=8, help="at once")
    parser.add_argument("--intervals", default="0.05,0.1,0.2", help="seconds, after each other")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each interval")
    args = parser.parse_args()
    table = Table(title=f"Times between two chunks, {args.streams} streams at once")
    for heading in ("interval, ms", "gaps", "median, ms", "error", "P99, ms", "P99 of the error"):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        make_tiny_model(model, arch="qwen3")
        env = {"SGLANG_PLATFORM": "tokenflow_emu", "HF_HUB_OFFLINE": "1"}
        with SglangServer(model, FLAGS, log_path=Path(scratch) / "log", env=env) as server:
            for interval in (None, *map(float, args.intervals.split(","))):
                gaps = together(server.port, interval, args.streams, args.seconds)
                table.add_row(*row(interval, gaps))
    Console().print(table)


def row(interval: float | None, gaps: np.ndarray[Any, Any]) -> list[str]:
    """Figures of the gaps, seconds, of an interval; None: without a deposit."""
    median, p99 = np.percentile(gaps, (50, 99)) * 1e3
    cells = ["none", str(len(gaps)), f"{median:.1f}", "", f"{p99:.1f}", ""]
    if interval is not None:
        wanted = interval * 1e3
        error = np.percentile(np.abs(gaps - interval) / interval, 99)
        cells[0], cells[3] = f"{wanted:g}", f"{median / wanted - 1:+.2%}"
        cells[5] = f"{error:.1%}"
    return cells


def together(port: int, interval: float | None, streams: int, seconds: float) -> Any:
    """Times between two chunks of streams that begin at once, in seconds."""
    found: list[list[float]] = []
    readers = [
        threading.Thread(target=lambda: found.append(read(port, interval, seconds)))
        for _ in range(streams)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return np.concatenate([np.diff(came) for came in found])


def read(port: int, interval: float | None, seconds: float) -> list[float]:
    """When each chunk of a stream came, for so long, in seconds."""
    custom: dict[str, Any] = {"tokenflow_rate": 1000}
    if interval is not None:
        custom |= {"tokenflow_deposit": True, "tokenflow_tbt_slo": interval}
    sampling = {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}
    body = {
        "input_ids": PROMPT,
        "stream": True,
        "sampling_params": {**sampling, "custom_params": custom},
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    kind = {"content-type": "application/json"}
    connection.request("POST", "/generate", json.dumps(body), kind)
    came: list[float] = []
    with connection.getresponse() as response:
        while line := response.readline():
            now = time.monotonic()
            data = line.decode().removeprefix("data: ").strip()
            if not data or data == "[DONE]":
                continue
            if json.loads(data)["meta_info"]["finish_reason"] is not None:
                break  # the burst
            came.append(now)
            if now - came[0] > seconds:
                break
    connection.close()
    return came


if __name__ == "__main__":
    main()
