"""The burst benchmark in the simulator: all workloads at full size, and one parameter changed.

    python benchmarks/burst/simulated.py
    python benchmarks/burst/simulated.py --azure AzureLLMInferenceTrace_conv.csv
    python benchmarks/burst/simulated.py --known-lengths

Takes some minutes, needs no server, and writes its tables into docs/benchmarks.md; those of real
traces only if their files are given (--azure, --mooncake). How far the simulator is from real
SGLang on the emulated device: fidelity.py. The simulated server sees the client's limit of each
answer and not its length, unless --known-lengths; a column says so.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

from devices import simulated_device
from rich.console import Console
from rich.progress import track
from run import PAIR, commit
from suite import LOADS, Load
from table import COLUMNS, PAGE, replace_table, table

from tokenflow_sgl.cli.chosen_trace import open_chosen
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.report import figures
from tokenflow_sgl.report.export import run_object
from tokenflow_sgl.sim import simulate
from tokenflow_sgl.sim.study.bounds import bounds
from tokenflow_sgl.sim.study.clairvoyant import clairvoyant
from tokenflow_sgl.sim.study.spread import on_cores
from tokenflow_sgl.traces import open_trace

SIMULATED = {"stock": "fcfs"}
"""What the simulator calls a contender, if it has another name for it."""

VARIANTS = {
    "4090-a": {f"burst-eta {eta:g}": WorkingSetConfig(burst_eta=eta) for eta in (1.0, 1.2)},
    "4090-b": {
        **{f"cycle {seconds:g} s": WorkingSetConfig(cycle=seconds) for seconds in (0.5, 1.0, 1.5)},
        **{f"mu {mu:g}": WorkingSetConfig(switch_factor=mu) for mu in (1.0, 5.0, 20.0)},
        **{f"eta {eta:g}": WorkingSetConfig(eta=eta) for eta in (0.8, 0.9, 1.1, 1.2)},
        **{f"hysteresis {s:g} s": WorkingSetConfig(hysteresis=s) for s in (3.0, 6.0, 14.0)},
    },
}
"""tokenflow with one parameter changed, the others as shipped, by workload."""


AZURE = {
    f"azure, {speed:g}x, {pool}": Load(
        "azure:FILE", "h200", tokens, 1.0, ("--rate", "20", "--speed-up", str(speed))
    )
    for speed, pools in ((1, ("all",)), (2, ("all",)), (4, ("all", "200k")))
    for pool, tokens in (("all", 916_069), ("200k", 200_000))
    if pool in pools
}
"""The hour of the Azure conversation trace, faster and faster: with all of an H200's KV memory, and
with that of Table 1."""
PACED = WorkingSetConfig(pace=True)
RIVALS = (
    *("stock", "fcfs-hicache", "chunked", "prefill-interval", "shortest-prefill", "qoserve"),
    "tokenflow",
)
"""What else a user would try, by the simulator's names."""
CONTESTED = ("h200-b", "h200-c", "4090-b", "4090-c")
"""Workloads of the rivals."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a workload, how it is labelled, the policy and its parameters."""

    load: Load
    trace: str
    name: str
    label: str
    policy: str
    config: WorkingSetConfig | None = None
    known_lengths: bool = False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", metavar="FILE", help="conversation trace")
    parser.add_argument("--mooncake", metavar="FILE", help="conversation trace")
    parser.add_argument(
        "--known-lengths", action="store_true", help="each answer's limit is its length"
    )
    given = parser.parse_args()
    named = {name: (load, load.trace) for name, load in LOADS.items() if "FILE" not in load.trace}
    files: dict[str, tuple[Load, str]] = {}
    if given.mooncake:
        files["mooncake"] = LOADS["mooncake"], f"mooncake:{given.mooncake}"
    if given.azure:
        files |= {name: (load, f"azure:{given.azure}") for name, load in AZURE.items()}
    jobs = [
        Job(*what, name, policy, policy)
        for name, what in (*named.items(), *files.items())
        for policy in PAIR
    ]
    jobs += [
        Job(*what, name, "tokenflow, paced", "tokenflow", PACED)
        for name, what in files.items()
        if name.endswith("all")
    ]
    rivals = [
        Job(*named[name], name, rival, rival)
        for name in CONTESTED
        for rival in RIVALS
        if rival not in PAIR
    ]
    varied = [
        Job(*named[name], name, label, "tokenflow", config)
        for name, variants in VARIANTS.items()
        for label, config in variants.items()
    ]
    with on_cores() as spread:
        every = [
            replace(job, known_lengths=given.known_lengths) for job in (*jobs, *rivals, *varied)
        ]
        every.sort(key=lambda job: job.name, reverse=True)  # the long ones first
        results: dict[str, Any] = {}
        runs = spread(_run, None, every)
        for job, found in zip(every, track(runs, "simulating", len(every)), strict=True):
            results.setdefault(job.name, {"runs": {}})["runs"][job.label] = found
    page = PAGE.read_text()
    page = replace_table(page, "simulated", table(results, [*named], PAIR))
    labels = ("stock", "tokenflow", *(job.label for job in varied))
    columns = COLUMNS | {
        "E2E per token, P90, ms": lambda run: 1e3 * run["tokenflow"]["e2e_per_token_s"]["p90"]
    }
    page = replace_table(page, "rivals", table(results, [*CONTESTED], RIVALS, columns))
    page = replace_table(page, "varied", table(results, [*VARIANTS], labels))
    page = replace_table(page, "limits", _limits(named, results))
    if files:
        labels = (*PAIR, "tokenflow, paced")
        page = replace_table(page, "real", table(results, [*files], labels))
    PAGE.write_text(page)


def _run(shared: None, job: Job) -> dict[str, Any]:
    return simulated(job.load, job.trace, job.policy, job.config, known_lengths=job.known_lengths)


def _limits(named: dict[str, tuple[Load, str]], results: dict[str, Any]) -> str:
    """How near to what can be done stock and tokenflow come."""
    lines = ["| workload | run | effective, of the bound | waiting, over the no-stall schedule |"]
    lines.append("| --- | --- | ---: | ---: |")
    for name, (load, trace) in named.items():
        profile, options = simulated_device(load.device, load.kv_tokens)
        limit = bounds(open_trace(trace), profile, options)
        known = clairvoyant(open_trace(trace), profile, options)
        for who in PAIR:
            found = results[name]["runs"][who]["tokenflow"]
            waiting = found["ttft_s"]["mean"] + found["stall_per_request_s"]["mean"]
            share = found["effective_throughput"] / limit.effective_throughput
            lines.append(
                f"| {name} | {who} | {share:.0%} of {limit.effective_throughput:,.0f} tokens/s | "
                f"{waiting / known.mean_ttft_s:.2f}x of {known.mean_ttft_s:.3g} s |"
            )
    return "\n".join(lines) + "\n"


def simulated(
    load: Load,
    trace: str,
    policy: str,
    config: WorkingSetConfig | None = None,
    page_size: int = 1,
    known_lengths: bool = False,
) -> dict[str, Any]:
    """A run as `run.py` keeps it, simulated with the same settings."""
    given = dict(zip(load.replay[::2], load.replay[1::2], strict=True))
    speed_up = given.get("--speed-up")
    chosen = open_chosen(
        trace,
        Console(stderr=True),
        seed=0,
        window=given.get("--window"),
        speed_up=float(speed_up) if speed_up else None,
        rate=given.get("--rate"),
    )
    profile, options = simulated_device(load.device, load.kv_tokens, load.link, page_size)
    policy = SIMULATED.get(policy, policy)
    simulation = simulate(
        chosen, profile, options, policy=policy, config=config, known_lengths=known_lengths
    )
    return {"commit": commit(), **run_object(figures(simulation.run))}


if __name__ == "__main__":
    main()
