"""What context switches cost, and what makes them cheap, in the simulator.

    python benchmarks/context_switch/simulated.py
    python benchmarks/context_switch/simulated.py --sharegpt sharegpt_8k_filtered_stats.csv

Takes some minutes on two cores, needs no server, and writes the tables of README.md beside this
file: tokenflow on a burst with one mechanism less each, and FastSwitch's changing priorities, both
at several links between device and host memory. With the file of conversations another table
instead: how much less is copied to the host because copies are kept.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from tokenflow_sgl.cli.chosen_trace import TraceChoice
from tokenflow_sgl.contract import Policy
from tokenflow_sgl.lab.profiles.pieces import NO_PIECE_COSTS, PieceCosts
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.baselines import MarkovPriorityPolicy, RandomPriorityPolicy

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from devices import simulated_device
from run import commit
from suite import LOADS, MODEL
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
WORKLOAD = "4090-b"
LINKS = (25.0, 6.0, 2.0)
"""GB/s each way: PCIe 4 x16, and what is left of it for one of several GPUs."""

ABLATION: Mapping[str, tuple[WorkingSetConfig, dict[str, Any]]] = {
    "all of it": (WorkingSetConfig(), {}),
    "not written ahead": (WorkingSetConfig(write_ahead=False), {}),
    "not loaded ahead": (WorkingSetConfig(load_ahead=False), {}),
    "neither": (WorkingSetConfig(write_ahead=False, load_ahead=False), {}),
    "no load-evict overlap": (WorkingSetConfig(), {"load_evict_overlap": False}),
    "write-back": (WorkingSetConfig(), {"hicache_write_policy": "write_back"}),
    "no offload": (WorkingSetConfig(), {"host_tokens": 0}),
}
"""tokenflow's parameters and SGLang's settings."""

SWITCHING: Mapping[str, tuple[bool, dict[str, Any]]] = {
    "recompute": (False, {"host_tokens": 0}),
    "swap, write-back": (False, {"hicache_write_policy": "write_back"}),
    "swap, write-through": (False, {}),
    "ours": (True, {}),
}
"""Whether KV is written and loaded ahead, and SGLang's settings."""
PATTERNS: Mapping[str, type[RandomPriorityPolicy]] = {
    "Markov": MarkovPriorityPolicy,
    "Random": RandomPriorityPolicy,
}
FREQUENCIES = (0.02, 0.04)
"""Updates of the priorities per iteration, as in the paper."""

CONVERSATIONS = "arrivals=poisson&rate=0.4&think=5"
CONVERSATIONS_SECONDS = "0:600"
REUSE: Mapping[str, str | Policy] = {
    "tokenflow": "tokenflow",
    f"Markov, {FREQUENCIES[0]:g}": MarkovPriorityPolicy(FREQUENCIES[0]),
}
"""Policies whose preemptions are looked at."""


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation."""

    link: float
    policy: str | Policy
    config: WorkingSetConfig = field(default_factory=WorkingSetConfig)
    settings: dict[str, Any] = field(default_factory=dict)
    trace: str = WORKLOAD
    known_lengths: bool = False
    page: int = 1
    pieces: PieceCosts = NO_PIECE_COSTS
    device: str = LOADS[WORKLOAD].device
    model: str = MODEL
    kv_tokens: int = LOADS[WORKLOAD].kv_tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sharegpt", metavar="FILE", help="lengths of conversations")
    parser.add_argument(
        "--known-lengths", action="store_true", help="each answer's limit is its length"
    )
    given = parser.parse_args()
    known = given.known_lengths
    told = (
        f"Simulated with {commit()}; the server {'knew' if known else 'did not know'} the answers' "
        "lengths.\n"
    )
    if given.sharegpt:
        trace = f"sharegpt:{given.sharegpt}?{CONVERSATIONS}"
        found = _all(
            {who: Job(LINKS[0], policy, trace=trace) for who, policy in REUSE.items()}, known
        )
        PAGE.write_text(replace_table(PAGE.read_text(), "reuse", f"{_reuse(found)}\n{told}"))
        return
    ablation = {
        (link, name): Job(link, "tokenflow", *what)
        for link, (name, what) in itertools.product(LINKS, ABLATION.items())
    }
    switching = {
        (link, pattern, frequency, name): Job(
            link, PATTERNS[pattern](frequency, ahead=ahead), settings=settings
        )
        for link, pattern, frequency in itertools.product(LINKS, PATTERNS, FREQUENCIES)
        for name, (ahead, settings) in SWITCHING.items()
    }
    # The long ones first: constant switches, or what they lost computed again.
    found = _all(dict(reversed({**ablation, **switching}.items())), known)
    page = PAGE.read_text()
    page = replace_table(page, "commit", told)
    page = replace_table(page, "ablation", _ablation({key: found[key] for key in ablation}))
    page = replace_table(page, "switching", _switching({key: found[key] for key in switching}))
    PAGE.write_text(page)


def _all(jobs: Mapping[Any, Job], known_lengths: bool) -> dict[Any, dict[str, float]]:
    """What every job found, over the cores."""
    every = [dataclasses.replace(job, known_lengths=known_lengths) for job in jobs.values()]
    with on_cores() as spread:
        done = track(spread(figures_of, None, every), "simulating", len(jobs))
        return dict(zip(jobs, done, strict=True))


def figures_of(shared: None, job: Job) -> dict[str, float]:
    """What the tables show of a simulation."""
    profile, options = simulated_device(job.device, job.kv_tokens, job.link, job.page, job.model)
    profile = dataclasses.replace(profile, pieces=job.pieces)
    options = dataclasses.replace(options, **job.settings)
    window = CONVERSATIONS_SECONDS if job.trace != WORKLOAD else None
    rate = "20" if window else None  # the named workload has its readers' rates
    trace = TraceChoice(window=window, rate=rate).open(job.trace, Console(stderr=True))
    done = simulate(
        trace,
        profile,
        options,
        policy=job.policy,
        config=job.config,
        known_lengths=job.known_lengths,
    )
    seen = figures(done.run)
    return {
        "makespan": seen.throughput.makespan,
        "effective": seen.throughput.effective,
        "tokens": seen.throughput.token,
        "ttft": seen.latency.ttft.mean,
        "ttft p95": seen.latency.ttft.p95,
        "ttft p99": seen.latency.ttft.p99,
        "ttft p999": seen.latency.ttft.p999,
        "tbt p999": seen.latency.tbt.p999,
        "stall": seen.readers.stall_mean,
        "switches": float(done.preempted),
        "tail": done.tail,
        "held": float(done.held),
        "stored": float(done.stores.tokens),
        "copying": done.stores.seconds + done.loads.seconds,
        "calls": float(done.stores.calls + done.loads.calls),
        "copied": float(done.stores.tokens + done.loads.tokens),
        "amplification": done.written / done.needed if done.needed else np.nan,
    }


def _ablation(found: Mapping[tuple[float, str], dict[str, float]]) -> str:
    lines = [
        "| link | tokenflow | makespan | effective tokens/s | mean TTFT | mean stall | switches | "
        "left to copy, median | written over needed |",
        "| --- | --- |" + " ---: |" * 7,
    ]
    for (link, name), run in found.items():
        ratio = run["makespan"] / found[link, "all of it"]["makespan"]
        written = "" if np.isnan(run["amplification"]) else f"{run['amplification']:.2f}"
        lines.append(
            f"| {link:g} GB/s | {name} | {run['makespan']:.1f} s ({ratio:.2f}x) | "
            f"{run['effective']:.0f} | {run['ttft']:.1f} s | {run['stall']:.2f} s | "
            f"{run['switches']:.0f} | {run['tail']:.0f} tokens | {written} |"
        )
    return "\n".join(lines) + "\n"


def _reuse(found: Mapping[str, dict[str, float]]) -> str:
    lines = [
        "| policy | preemptions | tokens that they held | copied to the host | less by |",
        "| --- |" + " ---: |" * 4,
    ]
    lines += [
        f"| {who} | {run['switches']:,.0f} | {run['held']:,.0f} | {run['stored']:,.0f} | "
        f"{1 - run['stored'] / run['held']:.0%} |"
        for who, run in found.items()
    ]
    return "\n".join(lines) + "\n"


def _switching(found: Mapping[tuple[float, str, float, str], dict[str, float]]) -> str:
    lines = [
        "| link | priorities | KV | P95 TTFT | P99 TTFT | P99.9 TBT | tokens/s | preemptions |",
        "| --- | --- | --- |" + " ---: |" * 5,
    ]
    for (link, pattern, frequency, name), run in found.items():
        base = found[link, pattern, frequency, "recompute"]
        cells = [
            f"{run[key]:.1f} s ({run[key] / base[key]:.2f}x)"
            for key in ("ttft p95", "ttft p99", "tbt p999")
        ]
        cells.append(f"{run['tokens']:.0f} ({run['tokens'] / base['tokens']:.2f}x)")
        lines.append(
            f"| {link:g} GB/s | {pattern}, {frequency:g} | {name} | {' | '.join(cells)} | "
            f"{run['switches']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
