"""Four simulated servers with tokenflow behind each router: who waits, who stalls.

    python benchmarks/fleet/simulated.py --azure AzureLLMInferenceTrace_conv.csv

Takes some minutes, needs no server, and writes its table into README.md beside this file.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.sim.cluster import ROUTERS
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.lab.traces import open_trace

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- fleet -->\n\n", "\n<!-- /fleet -->"
SERVERS = 4
KV_TOKENS, HOST_RATIO = 200_000, 8
SPEEDS = (15, 18)
"""How many times as fast the trace's arrivals come."""
STARTS = (0, 1800)
"""Where the windows of the trace begin, seconds; each is a run of its own."""
SECONDS = 600


@dataclass(frozen=True, slots=True)
class Job:
    """One run."""

    azure: str
    speed: int
    start: int
    router: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--azure", metavar="FILE", required=True, help="conversation trace")
    parser.add_argument("--workers", type=int, help="processes; default: one per core")
    given = parser.parse_args()
    jobs = [
        Job(given.azure, speed, start, str(router))
        for speed in SPEEDS
        for start in STARTS
        for router in ROUTERS
    ]
    rows: dict[tuple[int, str], list[tuple[float, ...]]] = {}
    with on_cores(given.workers) as spread:
        found = spread(run, None, jobs)
        for job, row in zip(jobs, track(found, "simulating", len(jobs)), strict=True):
            rows.setdefault((job.speed, job.router), []).append(row)
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2], encoding="utf-8")


def run(shared: None, job: Job) -> tuple[float, ...]:
    """Mean and P99 TTFT, stalls per stream, share of streams that stall, effective tokens/s."""
    spec = f"azure:{job.azure}?start={job.start}&duration={SECONDS}&speed={job.speed}&readers=20"
    options: Any = {"max_total_tokens": KV_TOKENS, "host_tokens": HOST_RATIO * KV_TOKENS}
    done = simulate(
        open_trace(spec),
        load_profile("h200", "llama3-8b"),
        EngineOptions(**options),
        replicas=SERVERS,
        router=job.router,
    )
    judged = figures(done.run)
    ttft, readers = judged.latency.ttft, judged.readers
    effective = judged.throughput.effective
    return ttft.mean, ttft.p99, readers.stall_mean, readers.stalled_share, effective


def table(rows: dict[tuple[int, str], list[tuple[float, ...]]]) -> str:
    """A row for each speed and router: means over the windows, and the range of P99 TTFT."""
    heads = ["arrivals", "router", "mean TTFT, s", "P99 TTFT, s", "of the windows"]
    heads += ["stall, s", "readers that stall", "effective tokens/s"]
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- |" + " ---: |" * (len(heads) - 2)]
    for (speed, router), windows in rows.items():
        ttft, p99, stall, stalled, effective = (
            sum(column) / len(windows) for column in zip(*windows, strict=True)
        )
        tails = ", ".join(f"{window[1]:.2f}" for window in windows)
        lines.append(
            f"| {speed}x | {router} | {ttft:.3f} | {p99:.2f} | {tails} | {stall:.3f} | "
            f"{stalled:.1%} | {effective:,.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
