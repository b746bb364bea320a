"""Answers that get longer or shorter, at once or slowly: stock SGLang beside tokenflow, simulated.

    python benchmarks/burst/shifts.py
    python benchmarks/burst/shifts.py "burst after short ones, RTX 4090" --seed 3

No scheduler knows the lengths, and clients allow 4,096 tokens. tokenflow has seen only answers of
one length when those of another begin. Takes some minutes, needs no server, prints a table. The
first row is what docs/simulate.md tells of the real server, made again for the simulator.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import numpy as np
from devices import simulated_device
from simulated import SIMULATED

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.export import run_object
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.lab.traces.generators.request_lengths import NormalLengths
from tokenflow_sgl.lab.traces.parameters import stream

RATE = 20.0
"""Tokens per second of all readers."""
LIMIT = 4096
"""Tokens that all clients allow."""
POOLS = {"rtx4090": 35_000, "h200": 200_000}
"""KV tokens of each device, as in the workloads of Table 1."""
RUNS = ("stock", "tokenflow")


@dataclass(frozen=True, slots=True)
class Part:
    """Requests whose answers are alike.

    Attributes:
        begin, seconds: When they arrive: spread evenly at random over so many seconds.
        count: How many.
        before, after: Mean length of the first answers and of the last; between them it changes by
            the same factor from each second to the next.
        prompt: Mean tokens of their prompts.
    """

    begin: float
    seconds: float
    count: int
    before: float
    after: float
    prompt: float = 512


SHIFTS: dict[str, tuple[str, tuple[Part, ...]]] = {
    "burst after short ones, RTX 4090": (
        "rtx4090",
        (Part(0, 20, 35, 35, 35), Part(40, 0, 80, 2048, 2048, 1024)),
    ),
    "burst after short ones, H200": (
        "h200",
        (Part(0, 20, 200, 35, 35), Part(40, 0, 400, 2000, 2000)),
    ),
    "burst after many short ones, RTX 4090": (
        "rtx4090",
        (Part(0, 120, 500, 75, 75), Part(130, 5, 100, 1500, 1500)),
    ),
    "suddenly longer, RTX 4090": (
        "rtx4090",
        (Part(0, 60, 240, 75, 75), Part(60, 60, 240, 1500, 1500)),
    ),
    "suddenly longer, H200": (
        "h200",
        (Part(0, 60, 600, 60, 60), Part(60, 60, 1200, 2000, 2000)),
    ),
    "suddenly twice as long, RTX 4090": (
        "rtx4090",
        (Part(0, 60, 120, 600, 600), Part(60, 60, 120, 1200, 1200)),
    ),
    "slowly longer, RTX 4090": ("rtx4090", (Part(0, 120, 480, 75, 1500),)),
    "slowly longer, H200": ("h200", (Part(0, 120, 2400, 60, 2000),)),
    "suddenly shorter, RTX 4090": (
        "rtx4090",
        (Part(0, 60, 120, 1500, 1500), Part(60, 60, 360, 75, 75)),
    ),
    "suddenly shorter, H200": (
        "h200",
        (Part(0, 60, 900, 2000, 2000), Part(60, 60, 1200, 60, 60)),
    ),
    "slowly shorter, RTX 4090": ("rtx4090", (Part(0, 120, 360, 1500, 75),)),
}
"""By name: device, and what comes. Rates of arrival as in Table 1 or near."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="shifts; none: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", nargs="*", default=RUNS, help="policies")
    given = parser.parse_args()
    print(
        "| shift | run | effective tokens/s | mean TTFT, s | P99 TTFT, s | stall, s "
        "| readers that stall |\n| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    )
    for name in given.names or SHIFTS:
        device, parts = SHIFTS[name]
        trace = shifting(name, parts, given.seed)
        for run in given.runs:
            print(f"| {name} | {run} | {_cells(trace, device, run)} |", flush=True)


def shifting(name: str, parts: tuple[Part, ...], seed: int = 0) -> Trace:
    """The trace of a shift."""
    requests: list[TraceRequest] = []
    for number, part in enumerate(parts):
        rng = stream(seed, f"{name} {number}")
        times = np.sort(rng.uniform(0.0, part.seconds, part.count))
        prompts = NormalLengths(part.prompt).sample(rng, part.count)
        share = times / part.seconds if part.seconds else np.zeros(part.count)
        mean = part.before * (part.after / part.before) ** share
        spread = NormalLengths(1000.0).sample(rng, part.count) / 1000.0
        answers = np.clip(mean * spread, 16, LIMIT).astype(np.int64)
        rows = zip(times.tolist(), prompts.tolist(), answers.tolist(), strict=True)
        requests += [
            TraceRequest(part.begin + time, prompt, answer, RATE, limit_tokens=LIMIT)
            for time, prompt, answer in rows
        ]
    return Trace(name, tuple(requests), Accounting(len(requests), len(requests)))


def _cells(trace: Trace, device: str, run: str) -> str:
    profile, options = simulated_device(device, POOLS[device])
    made = simulate(trace, profile, options, policy=SIMULATED.get(run, run))
    found = run_object(figures(made.run))["tokenflow"]
    ttft, stall = found["ttft_s"], found["stall_per_request_s"]
    return (
        f"{found['effective_throughput']:,.0f} | {ttft['mean']:.2f} | {ttft['p99']:.2f} | "
        f"{stall['mean']:.2f} | {found['stalled_share']:.0%}"
    )


if __name__ == "__main__":
    main()
