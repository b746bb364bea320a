"""The burst workloads with speculation, simulated: tokenflow over stock, with drafts and without.

    python benchmarks/burst/speculation.py
    python benchmarks/burst/speculation.py 4090-a h200-b --acceptance 3

A decode step verifies 4 tokens of each stream and gives it 2.5 on average, under stock SGLang and
tokenflow alike. No server knows the lengths. Takes some minutes, needs no server, and writes its
table into docs/paper-setting.md if all workloads were asked for; else it prints the rows.
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass
from typing import Any

from devices import simulated_device
from run import PAIR, commit
from simulated import SIMULATED
from suite import LOADS
from table import PAGE, replace_table

from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.export import run_object
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.lab.traces import open_trace

NAMES = [name for name in LOADS if name.startswith(("4090", "h200"))]
DRAFTS = 4
"""Tokens that a step verifies: three drafts and the stream's own."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a workload under a policy; `acceptance` 1: without speculation."""

    name: str
    policy: str
    acceptance: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="workloads; none: all eight")
    parser.add_argument("--acceptance", type=float, default=2.5)
    given = parser.parse_args()
    names = given.names or NAMES
    jobs = [
        Job(name, policy, acceptance)
        for name in names
        for acceptance in (1.0, given.acceptance)
        for policy in PAIR
    ]
    found: dict[Job, dict[str, Any]] = {}
    with on_cores() as spread:
        for job, run in zip(jobs, spread(_run, None, jobs), strict=True):
            found[job] = run
            print(job, f"{run['effective_throughput']:.0f}", flush=True)
    rows = "\n".join(_row(name, found, given.acceptance) for name in names)
    heads = ["workload"]
    heads += [
        f"{figure}: {when}"
        for figure in ("effective", "TTFT, mean", "TTFT, P99", "stall, s, of tokenflow")
        for when in ("without", "with")
    ]
    heads += ["effective, with over without"]
    lines = "| " + " | ".join(heads) + " |\n| --- |" + " ---: |" * (len(heads) - 1)
    text = f"{lines}\n{rows}\n"
    print(text)
    if names == NAMES:
        page = PAGE.read_text()
        PAGE.write_text(replace_table(page, "speculation", f"{text}\nCommit {commit()}.\n"))


def _run(shared: None, job: Job) -> dict[str, Any]:
    load = LOADS[job.name]
    profile, options = simulated_device(load.device, load.kv_tokens)
    if job.acceptance > 1.0:
        options = dataclasses.replace(
            options, speculative_num_draft_tokens=DRAFTS, acceptance=job.acceptance
        )
    policy = SIMULATED.get(job.policy, job.policy)
    done = simulate(open_trace(load.trace), profile, options, policy=policy)
    told: dict[str, Any] = run_object(figures(done.run))["tokenflow"]
    return told


def _row(name: str, found: dict[Job, dict[str, Any]], acceptance: float) -> str:
    both = [[found[Job(name, policy, each)] for policy in PAIR] for each in (1.0, acceptance)]
    cells = []
    for figure in (_effective, lambda run: run["ttft_s"]["mean"], lambda run: run["ttft_s"]["p99"]):
        cells += [f"{figure(ours) / figure(stock):.2f}x" for stock, ours in both]
    cells += [f"{ours['stall_per_request_s']['mean']:.2f}" for _, ours in both]
    ratios = [_effective(ours) / _effective(stock) for stock, ours in both]
    cells.append(f"{ratios[1] / ratios[0]:.0%}")
    return "| " + " | ".join([f"`{name}`", *cells]) + " |"


def _effective(run: dict[str, Any]) -> float:
    return float(run["effective_throughput"])


if __name__ == "__main__":
    main()
