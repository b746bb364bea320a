"""Two clients, one server: `sglang.bench_serving` and `tokenflow replay` on the same requests.

    python benchmarks/bench_serving_agreement.py

Starts real SGLang on an emulated RTX 4090 in real time, lets bench_serving send a burst, replays
the lengths that it recorded as the same burst, and prints what each client says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tokenflow_sgl.lab.demo.server import SglangServer

TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
FIGURES = ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "median_tpot_ms")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--input", type=int, default=512, help="tokens")
    parser.add_argument("--output", type=int, default=256, help="tokens")
    args = parser.parse_args()
    launcher = [TOKENFLOW, "serve-emulated", "--device", "rtx4090", "--time-dilation", "1", "--"]
    options = ("--max-total-tokens", "35000", "--incremental-streaming-output")
    with (
        tempfile.TemporaryDirectory() as scratch,
        SglangServer(None, options, launcher=launcher, log_path="agreement.log") as server,
    ):
        folder = Path(scratch)
        # The first run warms up server and client; it is not shown.
        for number in range(2):
            _forget(server.url)
            theirs = _bench_serving(server.url, args, folder / f"bench-{number}.jsonl")
            _forget(server.url)
            ours = _replay(server.url, folder / f"bench-{number}.jsonl", folder / f"run-{number}")
    table = Table(title=f"burst of {args.requests}, {args.input} tokens in, {args.output} out")
    for heading in ("", "bench_serving", "tokenflow replay", "difference"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name in FIGURES:
        difference = f"{ours[name] / theirs[name] - 1:+.1%}"
        table.add_row(name, f"{theirs[name]:.2f}", f"{ours[name]:.2f}", difference)
    Console().print(table)


def _forget(url: str) -> None:
    """Empty the prefix cache once the server is idle: both clients send the same prompts."""
    flush = urllib.request.Request(f"{url}/flush_cache?timeout=30", method="POST")
    urllib.request.urlopen(flush).close()


def _bench_serving(url: str, args: argparse.Namespace, output: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "sglang.bench_serving", "--backend", "sglang"]
    with urllib.request.urlopen(f"{url}/model_info") as response:
        command += ["--tokenizer", json.load(response)["model_path"]]
    command += ["--base-url", url, "--dataset-name", "random-ids", "--tokenize-prompt"]
    command += ["--num-prompts", str(args.requests), "--random-input-len", str(args.input)]
    command += ["--random-output-len", str(args.output), "--random-range-ratio", "0.5"]
    command += ["--disable-ignore-eos", "--output-file", str(output), "--output-details"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    figures: dict[str, Any] = json.loads(output.read_text())
    return figures


def _replay(url: str, recorded: Path, run: Path) -> dict[str, Any]:
    command = [TOKENFLOW, "replay", f"bench:{recorded}?arrivals=burst", "--url", url]
    # As bench_serving does: each limit is the answer's length.
    command += ["--rate", "20", "--known-lengths", "--output", str(run)]
    subprocess.run(command, check=True)
    report = subprocess.run(
        [TOKENFLOW, "report", str(run), "--json"], check=True, capture_output=True, text=True
    )
    figures: dict[str, Any] = json.loads(report.stdout)
    return figures


if __name__ == "__main__":
    main()
