"""What it is worth to begin a prefetch before memory for all of it is free, in the simulator.

    python benchmarks/context_switch/overlap.py

Takes some minutes on one core, and writes the tables "overlap" and "stages" of README.md beside
this file: the burst of the other tables drawn with several seeds, the resumes of all together.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from devices import simulated_device
from run import commit
from suite import LOADS
from switch_times import Noting, summary
from table import replace_table

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.traces import open_trace
from tokenflow_sgl.policy import WorkingSetConfig

PAGE = Path(__file__).with_name("README.md")
WORKLOAD = "4090-b"
SEEDS = range(4)
LINKS = (6.0, 2.0)
WHAT = "| link | proactive writes | prefetches "
HEADS = (
    f"{WHAT}| resumes | mean | P50 | P99 | effective tokens/s | mean stall |\n"
    "| --- | --- | --- |" + " ---: |" * 6,
    f"{WHAT}| left out meanwhile | of the slowest's time | the others: mean | P50 | P99 "
    "| memory | turn | link | copy | batch | step |\n| --- | --- | --- |" + " ---: |" * 11,
)


def main() -> None:
    found = []
    for link, ahead, chunks in itertools.product(LINKS, (True, False), (False, True)):
        config = WorkingSetConfig(write_ahead=ahead, load_chunks=chunks)
        found.append(rows(link, config))
        print(*found[-1], sep="\n", flush=True)
    write(found)


def write(found: list[tuple[str, str]]) -> None:
    """Put these lines into the two tables."""
    told = f"Simulated with {commit()}; {len(SEEDS)} draws of `{WORKLOAD}`, lengths not known."
    text = PAGE.read_text()
    for name, head, lines in zip(
        ("overlap", "stages"), HEADS, zip(*found, strict=True), strict=True
    ):
        text = replace_table(text, name, "\n".join([head, *lines]) + f"\n\n{told}\n")
    PAGE.write_text(text)


def rows(link: float, config: WorkingSetConfig) -> tuple[str, str]:
    """A line of each table."""
    load = LOADS[WORKLOAD]
    profile, options = simulated_device(load.device, load.kv_tokens, link)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "times"
        for seed in SEEDS:
            trace = open_trace(f"{WORKLOAD}?seed={seed}")
            done = simulate(trace, profile, options, policy=Noting(config, file))
            runs.append(figures(done.run))
        found = summary(file)
    effective = np.mean([run.throughput.effective for run in runs])
    stall = np.mean([run.readers.stall_mean for run in runs])
    what = (
        f"| {link:g} GB/s | {'on' if config.write_ahead else 'off'} | "
        f"{'in chunks' if config.load_chunks else 'as a whole'} | "
    )
    whole = (
        f"{found['count']:,.0f} | {found['mean_s']:.3f} s | {found['p50_s']:.3f} s | "
        f"{found['p99_s']:.2f} s | {effective:.0f} | {stall:.2f} s |"
    )
    kept, dropped = found["kept"], found["dropped"]
    stages = kept["stages_s"]
    parts = (
        stages["memory"],
        stages["turn"],
        stages["link"],
        stages["in part"] + stages["copy"],
        stages["admission"],
        stages["step"],
    )
    return what + whole, (
        f"{what}{dropped['share']:.0%} | {dropped['of_slowest']:.0%} | {kept['mean_s']:.3f} s | "
        f"{kept['p50_s']:.3f} s | {kept['p99_s']:.2f} s | "
        + " | ".join(f"{1e3 * part:.0f} ms" for part in parts)
        + " |"
    )


if __name__ == "__main__":
    main()
