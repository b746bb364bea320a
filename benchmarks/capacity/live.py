"""Readers beside prefills while memory is free: real SGLang on an emulated A100, and the simulator.

    python benchmarks/capacity/live.py --azure AzureLLMInferenceTrace_conv.csv

The prefill mix of search.py at one rate, at which stock SGLang already keeps many readers waiting
although all streams fit into memory. Time is virtual, so figures repeat, whatever else runs. The
servers see the client's limit of each answer and not its length. The figures go to
benchmarks/results/capacity/, and from there into README.md beside this file.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "papers"))

from live_beside_simulated import Column, Figures, keep, table
from run import measure, warm_up_burst
from search import GOAL, HOST_RATIO, KV_TOKENS, PAGE, RESULTS, trace_of
from suite import CONTENDERS, Load
from table import replace_table

from tokenflow_sgl.cli.chosen_engine import SimulatedServer
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.runs import Run, read_run
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.study.capacity_search import at_speed
from tokenflow_sgl.lab.traces import write_native

DEVICE = "a100"
SIMULATED = {"stock": "fcfs", "tokenflow": "tokenflow"}
"""The simulator's policy of each contender."""
COLUMNS = (
    Column("met", f"`{GOAL}`", "{:.1%}"),
    Column("ttft mean", "TTFT, mean, s", "{:.3f}"),
    Column("ttft p99", "P99, s"),
    Column("stall mean", "stall, mean, s", "{:.3f}"),
    Column("stall p99", "P99, s"),
    Column("stalled", "readers that stall", "{:.1%}"),
    Column("tokens", "tokens/s", "{:.0f}"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", type=Path, metavar="FILE", required=True, help="conversations")
    parser.add_argument("--rate", type=float, default=6.2, help="streams per second; default: 6.2")
    parser.add_argument("--output", type=Path, default=Path("capacity-results"))
    given = parser.parse_args()
    whole = trace_of("prefill", given.azure)
    trace = at_speed(whole, given.rate * 100.0 / len(whole.requests))
    path = given.output / f"prefill-{given.rate:g}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_native(path, trace)
    load = Load(str(path), DEVICE, KV_TOKENS[DEVICE], 1.0)
    profile, options = SimulatedServer(kv_tokens=load.kv_tokens, hicache_ratio=HOST_RATIO).open(
        DEVICE, load.model
    )
    for name, policy in SIMULATED.items():
        folder = given.output / f"{given.rate:g}-{name}"
        measure(load, str(path), name, CONTENDERS[name], folder, None)
        simulated = simulate(
            trace, profile, options, policy=policy, warm_up_burst=warm_up_burst(load)
        )
        keep(
            RESULTS / f"live-{DEVICE}-{given.rate:g}.json",
            name,
            SIMULATED,
            len(trace.requests),
            live=measured(read_run(folder)),
            simulated=measured(simulated.run),
        )
    found = {path.stem.rpartition("-")[2]: path for path in sorted(RESULTS.glob("live-*.json"))}
    page = replace_table(PAGE.read_text(), "live", table("streams/s", found, COLUMNS))
    PAGE.write_text(page)


def measured(run: Run) -> Figures:
    """The figures of COLUMNS."""
    judged = figures(run)
    readers, ttft = judged.readers, judged.latency.ttft
    return {
        "met": float(parse_goal(GOAL).met(run).mean()),
        "ttft mean": ttft.mean,
        "ttft p99": ttft.p99,
        "stall mean": readers.stall_mean,
        "stall p99": readers.stall.p99,
        "stalled": readers.stalled_share,
        "tokens": judged.throughput.token,
    }


if __name__ == "__main__":
    main()
