"""What it is worth to begin a prefetch before memory for all of it is free, in the simulator.

    python benchmarks/context_switch/overlap.py

Takes some minutes on one core, and writes the table "overlap" of README.md beside this file: the
burst of the other tables drawn with several seeds, the resumes of all of them together.
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

from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.report import figures
from tokenflow_sgl.sim import simulate
from tokenflow_sgl.traces import open_trace

PAGE = Path(__file__).with_name("README.md")
WORKLOAD = "4090-b"
SEEDS = range(4)
LINKS = (6.0, 2.0)
HEAD = (
    "| link | proactive writes | prefetches | resumes | mean | P50 | P99 | effective tokens/s "
    "| mean stall |\n| --- | --- | --- |" + " ---: |" * 6
)


def main() -> None:
    lines = [HEAD]
    for link, ahead, chunks in itertools.product(LINKS, (True, False), (False, True)):
        config = WorkingSetConfig(write_ahead=ahead, load_chunks=chunks)
        lines.append(row(link, config))
        print(lines[-1], flush=True)
    told = f"Simulated with {commit()}; {len(SEEDS)} draws of `{WORKLOAD}`, lengths not known."
    table = "\n".join(lines) + f"\n\n{told}\n"
    PAGE.write_text(replace_table(PAGE.read_text(), "overlap", table))


def row(link: float, config: WorkingSetConfig) -> str:
    """A line of the table."""
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
    return (
        f"| {link:g} GB/s | {'on' if config.write_ahead else 'off'} | "
        f"{'in chunks' if config.load_chunks else 'as a whole'} | {found['count']:,.0f} | "
        f"{found['mean_s']:.3f} s | {found['p50_s']:.3f} s | {found['p99_s']:.2f} s | "
        f"{effective:.0f} | {stall:.2f} s |"
    )


if __name__ == "__main__":
    main()
