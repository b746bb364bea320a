"""Real SGLang on an emulated device, stock against tokenflow, on named workloads.

    python benchmarks/burst/run.py 4090-a h200-b           # paired: stock, then tokenflow
    python benchmarks/burst/run.py 4090-a --contender all  # every contender
    python benchmarks/burst/run.py 4090-b --contender sensitivity
    python benchmarks/burst/run.py h200-d --scale 0.25
    python benchmarks/burst/run.py azure-2x --file AzureLLMInferenceTrace_conv.csv
    python benchmarks/burst/run.py 4090-a --known-lengths  # limits are the answers' lengths

Each contender gets a server of its own, one after the other, and the very same requests. Runs are
kept under --output; the figures go to benchmarks/results/burst/WORKLOAD.json, from which
`table.py` makes docs/paper-setting.md. A run that the machine could not keep up with is marked
invalid there. Nothing else should run meanwhile, unless time is virtual. The servers see the
client's limit of each answer and not its length, unless --known-lengths; such runs are kept beside
the others, by a name of their own.
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
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from devices import device_profile
from suite import (
    CONTENDERS,
    LOADS,
    PAGED,
    PRIORITY_LEVELS,
    SENSITIVITY,
    SERVER,
    WITH_PRIORITIES,
    Load,
    options_of,
)

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.export import run_object
from tokenflow_sgl.lab.runs import read_run
from tokenflow_sgl.lab.traces import open_trace, write_native

ROOT = Path(__file__).resolve().parents[2]
POLICIES = str(ROOT / "benchmarks" / "context_switch")
"""Where the servers find the policies of benchmarks."""
RESULTS = ROOT / "benchmarks" / "results" / "burst"
TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
INVALID = 3  # exit code of `tokenflow replay` for a run that must not be trusted
STARTUP_S = 1200.0
"""Seconds that a server may take to start: beside other work it is many minutes."""
PAIR = ("stock", "tokenflow")
KNOWN = ", known lengths"
"""What the name of a run ends with whose server was to know when each answer ends."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="+", choices=LOADS, metavar="WORKLOAD")
    parser.add_argument(
        "--contender",
        action="append",
        choices=[*CONTENDERS, *SENSITIVITY, *PAGED, "all", "sensitivity"],
        help="default: stock and tokenflow",
    )
    parser.add_argument("--scale", type=float, help="part of a named workload")
    parser.add_argument("--file", type=Path, help="trace file of azure-* or mooncake")
    clock = parser.add_mutually_exclusive_group()
    clock.add_argument("--dilation", type=float, help="instead of the suite's")
    clock.add_argument(
        "--virtual-time",
        action="store_true",
        help="on a clock that only the device's work moves: the same figures on every machine",
    )
    parser.add_argument("--output", type=Path, default=Path("burst-results"))
    parser.add_argument(
        "--known-lengths", action="store_true", help="send each answer's length as its limit"
    )
    args = parser.parse_args()
    for name in args.workloads:
        load = LOADS[name]
        if "FILE" in load.trace and args.file is None:
            parser.error(f"{name} needs --file")
        trace = load.trace.replace("FILE", str(args.file))
        trace += f"?scale={args.scale:g}" if args.scale else ""
        for contender in _chosen(args.contender):
            run = contender + (KNOWN if args.known_lengths else "")
            dilation = None if args.virtual_time else args.dilation or load.dilation
            folder = args.output / name / run.replace(" ", "-").replace(",", "")
            options = options_of(contender)
            measure(
                load,
                trace,
                contender,
                options,
                folder,
                dilation,
                known_lengths=args.known_lengths,
            )
            time = "virtual" if dilation is None else f"dilated by {dilation:g}"
            path = RESULTS / f"{name}.json"
            keep(path, name, load, trace, run, options, folder, time=time)


def _chosen(asked: list[str] | None) -> list[str]:
    names: list[str] = []
    for name in asked or PAIR:
        names += {"all": [*CONTENDERS], "sensitivity": [*SENSITIVITY]}.get(name, [name])
    return names


def measure(
    load: Load,
    trace: str,
    contender: str,
    options: tuple[str, ...],
    folder: Path,
    dilation: float | None,
    after: Callable[[str], dict[str, Any]] = lambda url: {},
    known_lengths: bool = False,
) -> dict[str, Any]:
    """Start a server with SGLang's `options`, replay the trace, write the run to `folder`.

    dilation: Wall-clock seconds per emulated second; None: time is virtual.
    known_lengths: Send each answer's length as its limit.
    after: Called with the server's URL while it still runs; its result is returned.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    profile = folder.with_suffix(".profile.json")
    device_profile(load.device, load.link, load.model).save(profile)
    launcher = [TOKENFLOW, "serve-emulated", "--profile", str(profile)]
    clock = ["--virtual-time"] if dilation is None else ["--time-dilation", str(dilation)]
    launcher += [*clock, "--"]
    options = ("--max-total-tokens", str(load.kv_tokens), *SERVER, *options)
    print(f"\n{trace}: {contender} ({shlex.join(options)})", flush=True)
    log = folder.with_suffix(".log")
    paths = os.pathsep.join([POLICIES, *filter(None, [os.environ.get("PYTHONPATH")])])
    with SglangServer(
        None,
        options,
        launcher=launcher,
        log_path=log,
        env={"PYTHONPATH": paths},
        startup_timeout_s=STARTUP_S,
    ) as server:
        command = [TOKENFLOW, "replay"]
        if contender == WITH_PRIORITIES:
            command += [_with_priorities(trace, folder.with_suffix(".jsonl")), "--send-priority"]
        else:
            command.append(trace)
        command += ["--url", server.url, "--output", str(folder)]
        # A server that has served: warm, and with a notion of what its steps cost.
        command += ["--name", contender, "--warm-up-burst", str(warm_up_burst(load)), *load.replay]
        command += ["--known-lengths"] if known_lengths else []
        code = subprocess.run(command).returncode
        said = after(server.url)
    if code not in (0, INVALID):
        raise SystemExit(f"replay ended with {code}; the server's log is {log}")
    return said


def warm_up_burst(load: Load) -> int:
    """Requests that are sent before the measured ones."""
    return min(load.kv_tokens // 1000, 200)


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


def keep(
    path: Path,
    name: str,
    load: Load,
    trace: str,
    contender: str,
    options: tuple[str, ...],
    folder: Path,
    **more: Any,
) -> None:
    """Add the contender's figures, and `more`, to the result file at `path`."""
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"runs": {}}
    kept |= {"workload": name, "device": load.device, "kv_tokens": load.kv_tokens}
    kept["runs"][contender] = {
        "commit": commit(),
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        "sglang": [*SERVER, *options],
        "replay": [trace.partition(":")[0], *load.replay],
        **run_object(figures(read_run(folder))),
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(kept, indent=1, allow_nan=False) + "\n")


def commit() -> str:
    """The commit that runs; marked if the code differs from it. Results do not count."""

    def git(*command: str) -> str:
        return subprocess.run(
            ["git", "-C", str(ROOT), *command], capture_output=True, text=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--", "tokenflow_sgl", "emulator")
    return git("describe", "--always") + ("-dirty" if changed else "")


if __name__ == "__main__":
    main()
