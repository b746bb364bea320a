"""Real SGLang on an emulated device, stock against tokenflow, on named workloads.

    python benchmarks/burst/run.py 4090-a h200-b           # paired: stock, then tokenflow
    python benchmarks/burst/run.py 4090-a --contender all  # every contender
    python benchmarks/burst/run.py 4090-b --contender sensitivity
    python benchmarks/burst/run.py h200-d --scale 0.25
    python benchmarks/burst/run.py azure-2x --file AzureLLMInferenceTrace_conv.csv

Each contender gets a server of its own, one after the other, and the very same requests. Runs are
kept under --output; the figures go to benchmarks/results/burst/WORKLOAD.json, from which
`table.py` makes docs/benchmarks.md. A run that the machine could not keep up with is marked
invalid there. Nothing else should run meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from suite import (
    CONTENDERS,
    LOADS,
    MODEL,
    PRIORITY_LEVELS,
    SENSITIVITY,
    SERVER,
    WITH_PRIORITIES,
    Load,
    options_of,
)

from tokenflow_sgl.demo.server import SglangServer
from tokenflow_sgl.replay import read_run
from tokenflow_sgl.report import figures
from tokenflow_sgl.report.export import run_object
from tokenflow_sgl.traces import open_trace, write_native

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "burst"
TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
INVALID = 3  # exit code of `tokenflow replay` for a run that must not be trusted
PAIR = ("stock", "tokenflow")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", choices=LOADS, metavar="WORKLOAD")
    parser.add_argument(
        "--contender",
        action="append",
        choices=[*CONTENDERS, *SENSITIVITY, "all", "sensitivity"],
        help="default: stock and tokenflow",
    )
    parser.add_argument("--scale", type=float, help="part of a named workload")
    parser.add_argument("--file", type=Path, help="trace file of azure-* or mooncake")
    parser.add_argument("--dilation", type=float, help="instead of the suite's")
    parser.add_argument("--output", type=Path, default=Path("burst-results"))
    args = parser.parse_args()
    for name in args.workloads:
        load = LOADS[name]
        if "FILE" in load.trace and args.file is None:
            parser.error(f"{name} needs --file")
        trace = load.trace.replace("FILE", str(args.file))
        trace += f"?scale={args.scale:g}" if args.scale else ""
        for contender in _chosen(args.contender):
            folder = args.output / name / contender.replace(" ", "-").replace(",", "")
            dilation = args.dilation or load.dilation
            _measure(load, trace, contender, folder, dilation)
            _keep(name, load, trace, contender, folder)


def _chosen(asked: list[str] | None) -> list[str]:
    names: list[str] = []
    for name in asked or PAIR:
        names += {"all": [*CONTENDERS], "sensitivity": [*SENSITIVITY]}.get(name, [name])
    return names


def _measure(load: Load, trace: str, contender: str, folder: Path, dilation: float) -> None:
    """Start the contender's server, replay the trace, write the run."""
    shutil.rmtree(folder, ignore_errors=True)
    launcher = [TOKENFLOW, "serve-emulated", "--device", load.device, "--model", MODEL]
    launcher += ["--time-dilation", str(dilation), "--"]
    options = ("--max-total-tokens", str(load.kv_tokens), *SERVER, *options_of(contender))
    print(f"\n{trace}: {contender} ({shlex.join(options)})", flush=True)
    log = folder.with_suffix(".log")
    with SglangServer(None, options, launcher=launcher, log_path=log) as server:
        command = [TOKENFLOW, "replay"]
        if contender == WITH_PRIORITIES:
            command += [_with_priorities(trace, folder.with_suffix(".jsonl")), "--send-priority"]
        else:
            command.append(trace)
        command += ["--url", server.url, "--output", str(folder)]
        # A server that has served: warm, and with a notion of what its steps cost.
        warm_up = str(min(load.kv_tokens // 1000, 200))
        command += ["--name", contender, "--warm-up-burst", warm_up, *load.replay]
        code = subprocess.run(command).returncode
    if code not in (0, INVALID):
        raise SystemExit(f"replay ended with {code}; the server's log is {log}")


def _with_priorities(trace: str, path: Path) -> str:
    """Write the trace with a priority for every request, drawn evenly; returns the file's path."""
    drawn = np.random.default_rng(0)
    whole = open_trace(trace)
    requests = tuple(
        replace(request, priority=int(drawn.integers(PRIORITY_LEVELS)))
        for request in whole.requests
    )
    write_native(path, replace(whole, requests=requests))
    return str(path)


def _keep(name: str, load: Load, trace: str, contender: str, folder: Path) -> None:
    """Add the contender's figures to the workload's result file."""
    path = RESULTS / f"{name}.json"
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    kept |= {"workload": name, "device": load.device, "kv_tokens": load.kv_tokens}
    kept["runs"][contender] = {
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "sglang": [*SERVER, *options_of(contender)],
        "replay": [trace.partition(":")[0], *load.replay],
        **run_object(figures(read_run(folder))),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n")


def commit() -> str:
    """The commit that runs; marked if the code differs from it. Results do not count."""

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *command], capture_output=True, text=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "emulator")
    return git("describe", "--always") + ("-dirty" if changed else "")


if __name__ == "__main__":
    main()
