"""Voice, chat and agents on one simulated server, with and without their classes declared.

    python benchmarks/classes/simulated.py

An RTX 4090 with Llama3-8B, and three kinds of streams in equal number. Takes a minute, needs no
server, and writes its table into README.md beside this file.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.runs.recording import record
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.lab.traces.generators.request_lengths import LogNormalLengths
from tokenflow_sgl.lab.traces.parameters import stream
from tokenflow_sgl.qos import NOTICEABLE_STALL, noticed, play
from tokenflow_sgl.qos.classes import QosClass, QosClasses, load_classes

HERE = Path(__file__).parent
PAGE, FILE = HERE / "README.md", HERE / "classes.toml"
BEGIN, END = "<!-- table -->\n\n", "\n<!-- /table -->"
DEVICE, MODEL, KV_TOKENS, HOST = "rtx4090", "llama3-8b", 35_000, 8
SEED = 1


@dataclass(frozen=True, slots=True)
class Kind:
    """Mean tokens of prompts and answers of one class."""

    prompt: float
    output: float


KINDS = {"voice": Kind(400, 250), "chat": Kind(500, 800), "agents": Kind(1500, 400)}
LOADS = {"burst": (60, 10.0), "lasting": (160, 300.0)}
"""Streams of each class, and the seconds over which they arrive."""
RUNS = ("stock", "rates alone", "classes")


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    lines = [
        "| load | class | run | mean TTFT, s | P99 TTFT, s | stalled for, mean, s | streams with a "
        "stall that is not tolerated | mean end to end, s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for load, (count, seconds) in LOADS.items():
        trace = mixed(count, seconds)
        rows = {each: figures(run(trace, each)) for each in RUNS}
        lines += [
            f"| {load} | {name} | {each} | {' | '.join(rows[each][name])} |"
            for name in KINDS
            for each in RUNS
        ]
    text = PAGE.read_text()
    head, rest = text.split(BEGIN)
    PAGE.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + rest.split(END)[1])


def mixed(count: int, seconds: float) -> Trace:
    """So many streams of each class; they arrive at random over so many seconds."""
    requests: list[TraceRequest] = []
    for name, kind in KINDS.items():
        rng = stream(SEED, name)
        prompts, outputs = (
            LogNormalLengths(mean, 0.6, low=16, high=8000).sample(rng, count)
            for mean in (kind.prompt, kind.output)
        )
        times = rng.uniform(0.0, seconds, count)
        requests += [
            TraceRequest(time, prompt, output, qos_class=name)
            for time, prompt, output in zip(
                times.tolist(), prompts.tolist(), outputs.tolist(), strict=True
            )
        ]
    requests.sort(key=lambda request: request.arrival_s)
    return Trace(f"mixed-{seconds:g}s", tuple(requests), Accounting(len(requests), len(requests)))


def run(trace: Trace, name: str) -> Run:
    """One of `RUNS`. With rates alone each class has its rate, and neither tolerance nor weight."""
    declared = load_classes(FILE)
    profile = load_profile(DEVICE, MODEL)
    options = EngineOptions(
        max_total_tokens=KV_TOKENS,
        host_tokens=HOST * KV_TOKENS,
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
    )
    return simulate(
        trace,
        profile,
        options,
        policy="fcfs" if name == "stock" else "tokenflow",
        classes=declared if name == "classes" else plain(declared),
    ).run


def plain(declared: QosClasses) -> QosClasses:
    """The same classes with nothing but their rates."""
    known = {name: QosClass(name, each.rate) for name, each in declared.known.items()}
    return replace(declared, known=known)


def figures(made: Run) -> dict[str, Sequence[str]]:
    """The table's cells of each class."""
    found = record(made)
    classes = np.array(made.requests["qos_class"].to_pylist())[found.index]
    plays = [play(found.visible(row), float(found.rate[row])) for row in range(len(found))]
    stalled = np.array([each.stalls.sum() for each in plays])
    ttft, whole = found.first - found.scheduled, found.last - found.scheduled
    cells = {}
    for name in KINDS:
        mine, of = classes == name, load_classes(FILE).known[name]
        least = max(of.tolerance, NOTICEABLE_STALL)
        minded = [noticed(plays[row].stalls, least).any() for row in np.nonzero(mine)[0]]
        cells[name] = (
            f"{ttft[mine].mean():.2f}",
            f"{np.percentile(ttft[mine], 99):.2f}",
            f"{stalled[mine].mean():.2f}" if of.reader else "-",
            f"{np.mean(minded):.0%}" if of.reader else "-",
            f"{whole[mine].mean():.1f}",
        )
    return cells


if __name__ == "__main__":
    main()
