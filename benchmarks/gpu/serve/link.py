"""Copies and steps of this device: by torch alone, in SGLang's own steps, and beside pauses."""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from journal import Figures
from machine import ROOT, Machine
from same_tokens import Case, ask, small, times

from tokenflow_sgl.lab.observe.metrics_page import Scrape, scrape
from tokenflow_sgl.lab.profiles import ProfileError
from tokenflow_sgl.lab.profiles.fit import fit
from tokenflow_sgl.lab.profiles.measured import COLUMNS, read_measurements

SCRIPTS = ROOT / "benchmarks" / "gpu"
REFIT = "refit.json"
"""The profile with SGLang's own steps on this device."""
DECODE, GRAPHS = "sglang:forward_execution_seconds_total", "sglang:cuda_graph_passes_total"
COPIES = {
    "load": ("sglang:load_back_bytes_total", "sglang:load_back_duration_seconds"),
    "store": ("sglang:hicache_backup_bytes_total", "sglang:hicache_backup_duration_seconds"),
}
"""SGLang's metrics of copies: bytes, and seconds of the device for each."""


def script(machine: Machine, name: str, *options: str | Path) -> str:
    """Run a script of benchmarks/gpu, at toy size on a CPU; what it printed.

    Raises:
        RuntimeError: It ended with an error.
    """
    toy = ("--toy",) if machine.toy and name != "compare.py" else ()
    command = [sys.executable, str(SCRIPTS / name), *map(str, options), *toy]
    # Without a GPU Triton's kernels run in its interpreter.
    env = {**os.environ, **({"TRITON_INTERPRET": "1"} if machine.toy else {})}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    print(done.stdout, end="", flush=True)
    if done.returncode:
        raise RuntimeError(f"{name} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def copies(machine: Machine, against: str, folder: Path) -> Figures:
    """Copies and steps by torch alone, and beside each other.

    Args:
        machine: Where.
        against: The device whose shipped profile the table compares with.
        folder: For `measured.csv`, `measured.json`, and if that profile is there, `table.md`.
    """
    script(machine, "measure.py", "--output", folder)
    rows = read_measurements(folder / "measured.csv")
    rest = json.loads((folder / "measured.json").read_text())
    try:
        script(machine, "compare.py", folder, "--against", against)
    except RuntimeError as error:
        print(f"    no table against the shipped profile: {error}", flush=True)
    per_token = _kv_bytes(rest["model"])
    rates = {
        f"{kind}_bytes_per_s": max(
            row.tokens * per_token / row.seconds for row in rows if row.kind == kind
        )
        for kind in ("load", "store")
    }
    longer = [each["step_beside_s"] / each["step_alone_s"] for each in rest["beside"]]
    return {**rates, "steps_beside_copies": max(longer, default=None), "beside": rest["beside"]}


def _kv_bytes(model: dict[str, Any]) -> int:
    return int(2 * model["layers"] * model["kv_heads"] * model["head_dim"] * 2)


@dataclass(frozen=True, slots=True)
class Grid:
    """Batches and prompt lengths of `sglang.benchmark.one_batch`."""

    batches: tuple[int, ...]
    lengths: tuple[int, ...]


GRIDS = (Grid((1, 16, 64, 128), (128, 512, 1024)), Grid((1,), (2048, 4096, 8192)))
TOY_GRIDS = (Grid((1, 2, 4), (16, 32, 64)),)
DECODED = 16
"""Tokens that each batch decodes."""


def steps(machine: Machine, measured: Path, folder: Path) -> Figures:
    """SGLang's own steps, by its `one_batch`, and a profile of them and of the copies.

    Args:
        machine: Where.
        measured: The file of `copies` that has the link's times.
        folder: For `measured.csv` and the profile, `REFIT`.

    Raises:
        RuntimeError: SGLang's benchmark ended with an error.
    """
    shape = machine.shape
    if shape is None:
        raise ProfileError("the shape of a model with weights is not known here")
    found = folder / "one_batch.jsonl"
    for grid in TOY_GRIDS if machine.toy else GRIDS:
        command = [sys.executable, "-c", ONE_BATCH, *machine.model_options(shape)]
        command += machine.options()
        command += ["--batch-size", *map(str, grid.batches)]
        command += ["--input-len", *map(str, grid.lengths)]
        command += ["--output-len", str(DECODED), "--result-filename", str(found)]
        with (folder / "one_batch.log").open("a") as log:
            done = subprocess.run(
                command, stdout=log, stderr=log, env={**os.environ, **machine.variables()}
            )
        if done.returncode:
            end = (folder / "one_batch.log").read_text()[-2000:]
            raise RuntimeError(f"sglang.benchmark.one_batch ended with {done.returncode}: {end}")
    taken = [json.loads(line) for line in found.read_text().splitlines()]
    path = folder / "measured.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for each in taken:
            rows, length = each["batch_size"], each["input_len"]
            context = length + DECODED // 2
            writer.writerow(("decode", rows, "", context, each["median_decode_latency"]))
            writer.writerow(("prefill", rows, length, 0, each["prefill_latency"]))
        for row in read_measurements(measured):
            if row.kind in ("load", "store"):
                writer.writerow((row.kind, "", row.tokens, "", row.seconds))
    profile, residuals = fit(
        read_measurements(path),
        device=machine.device(),
        model=shape,
        memory=machine.memory() or 16 << 30,
        source="measured with sglang.benchmark.one_batch",
    )
    profile.save(folder / REFIT)
    worst = {each.kind: each.worst for each in residuals}
    return {"steps": len(taken), "worst_residual": worst, "rows": taken}


ONE_BATCH = """
from sglang.srt.plugins import load_plugins
load_plugins()
import argparse
from sglang.benchmark import one_batch
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
one_batch.BenchArgs.add_cli_args(parser)
given = parser.parse_args()
one_batch.main(ServerArgs.from_cli_args(given), one_batch.BenchArgs.from_cli_args(given))
"""
"""SGLang's own command, with its plugins: our weights depend on what was said before."""


def pauses(machine: Machine, case: Case, folder: Path) -> Figures:
    """Decode steps of the same streams on stock SGLang, and with pauses all the time.

    Every few steps half of the streams are paused, written to the host and loaded back, while the
    others decode. There is memory for a part of them only, else nothing would have to come back.
    """
    ample = ("--max-total-tokens", str(2 * case.needed()))
    found: Figures = {}
    for name, options in {"stock": ample, "pausing": (*small(case), *case.ours)}.items():
        with machine.served(folder, name, options) as served:
            ask(served, case)  # SGLang compiles and captures what it needs
            served.flush_when_idle()
            before = scrape(served.server.url)
            answers = ask(served, case)
            served.flush_when_idle()
            counted = scrape(served.server.url).since(before)
        found[name] = {**read(counted), "times": times(answers)}
    return found


def read(counted: Scrape) -> Figures:
    """What a server's counters say of its steps and copies; None: it counts no such thing."""
    seconds, passes = counted.by(DECODE, "category"), counted.by(GRAPHS, "mode")
    decodes = sum(count for mode, count in passes.items() if mode.startswith("decode"))
    prefills = sum(count for mode, count in passes.items() if mode.startswith("prefill"))
    tokens = counted.total("sglang:generation_tokens_total")
    found: Figures = {
        "decode_step_s": _over(seconds.get("decode", math.nan), decodes),
        "rows": _over(tokens, decodes),
        "decodes_in_graphs": _over(passes.get("decode_cuda_graph", 0.0), decodes),
        "prefills_in_graphs": _over(passes.get("prefill_cuda_graph", 0.0), prefills),
        "seconds_by_kind": seconds,
        "preemptions": counted.total("preemptions_total"),
    }
    for kind, (size, span) in COPIES.items():
        total, busy = counted.total(size), counted.total(f"{span}_sum")
        found[kind] = {
            "bytes": total,
            "bytes_per_s": _over(total, busy),
            "median_s": counted.quantile(span, 0.5),
            "p99_s": counted.quantile(span, 0.99),
        }
    return found


def _over(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
