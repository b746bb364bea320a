"""Programs with deadlines beside readers: how many answers come in time, by scheduler.

    python benchmarks/overload/deadlines.py

Simulated; needs no server. Half of the streams are read, half are wanted as a whole by a deadline.
First the rate is searched at which 95 % of all are served well under tokenflow; then 0.9 and 1.5
times as much comes. Runs are kept in benchmarks/results/overload; the table goes into README.md
beside this file. Some minutes on one core.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tokenflow_sgl.choices import Contender
from tokenflow_sgl.cli.chosen_engine import SimulatedServer
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.sim.run import simulate
from tokenflow_sgl.lab.sim.study.capacity_search import at_speed
from tokenflow_sgl.lab.traces import Trace, open_trace
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, QosClass, QosClasses

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
KEPT = Path(__file__).resolve().parents[1] / "results" / "overload" / "deadlines.json"
SPEC = "h200-c?duration=120&readers=20&share=0.5"
DEADLINES = (120.0, 50.0)
"""Seconds: some that all answers can keep, and some that one in eight cannot, even by itself."""
LOADS = (0.9, 1.5)
SEEDS = (0, 1, 2)
GOAL, SHARE = "ttft<=2,stall<=0.5", 0.95
POLICIES = (Contender.fcfs, Contender.hrrn, Contender.vtc, Contender.edf, Contender.qoserve)
UNAWARE = "tokenflow, no deadline stated"
SPEEDS = np.geomspace(0.4, 1.6, 25).tolist()
"""Multiples of the trace's arrivals among which the greatest is sought that is carried."""


def main() -> None:
    """Make the runs, unless they are kept, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--again", action="store_true", help="repeat the runs that are kept")
    given = parser.parse_args()
    if given.again or not KEPT.exists():
        KEPT.write_text(json.dumps([measured(each) for each in DEADLINES], indent=2) + "\n")
    found = json.loads(KEPT.read_text())
    page = PAGE.read_text(encoding="utf-8")
    text = "\n\n".join(table(each) for each in found)
    PAGE.write_text(replace_table(page, "deadlines", text), encoding="utf-8")


def measured(deadline: float) -> dict[str, Any]:
    """All runs with one deadline."""
    low, high = 0, len(SPEEDS)
    while high - low > 1:  # carried at `low`, or nowhere
        middle = (low + high) // 2
        row = one(Contender.tokenflow, SPEEDS[middle], deadline, 0)
        low, high = (middle, high) if row["well"] >= SHARE * row["best"] else (low, middle)
    rows: dict[str, Any] = {"deadline": deadline, "speed": SPEEDS[low], "runs": []}
    for load in LOADS:
        for policy in (Contender.tokenflow, UNAWARE, *POLICIES):
            for seed in SEEDS:
                row = one(policy, load * SPEEDS[low], deadline, seed)
                rows["runs"].append({"load": load, "policy": str(policy), **row})
                print(rows["runs"][-1], flush=True)
    return rows


def one(policy: str, speed: float, deadline: float, seed: int) -> dict[str, float]:
    """Shares of one run: deadlines kept, readers served well, and what could be had at best."""
    profile, options = SimulatedServer(kv_tokens=200_000, hicache_ratio=2.0).open(
        "h200", "llama3-8b"
    )
    trace = at_speed(open_trace(f"{SPEC}&seed={seed}" if seed else SPEC), speed)
    jobs = np.random.default_rng(seed).random(len(trace.requests)) < 0.5
    ours = Contender.tokenflow if policy == UNAWARE else policy
    said, classes = with_jobs(trace, jobs, None if policy == UNAWARE else deadline)
    run = simulate(said, profile, options, policy=ours, classes=classes).run
    kept = parse_goal(f"e2e<={deadline:g}").met(run)[jobs]
    read = parse_goal(GOAL).met(run)[~jobs]
    stalled = parse_goal("stall<=0.5").met(run)[~jobs]
    alone = SECONDS_PER_TOKEN * np.array([each.output_tokens for each in trace.requests])[jobs]
    best = ((alone <= deadline).sum() + (~jobs).sum()) / len(jobs)
    return {
        "kept": float(kept.mean()),
        "read": float(read.mean()),
        "stalled": float(1.0 - stalled.mean()),
        "well": float((kept.sum() + read.sum()) / len(jobs)),
        "best": float(best),
    }


SECONDS_PER_TOKEN = 0.011
"""Of the device's steps when it is about half full."""


def with_jobs(trace: Trace, jobs: Any, deadline: float | None) -> tuple[Trace, QosClasses]:
    """The trace with these requests as jobs, and the server's classes."""
    known = {
        "chat": QosClass("chat", 20.0),
        "job": QosClass("job", 1000.0, reader=False, deadline=deadline),
    }
    requests = tuple(
        dataclasses.replace(each, rate=None, qos_class="job" if job else "chat")
        for each, job in zip(trace.requests, jobs.tolist(), strict=True)
    )
    classes = dataclasses.replace(SHIPPED_CLASSES, known={**SHIPPED_CLASSES.known, **known})
    return dataclasses.replace(trace, requests=requests), classes


def table(rows: dict[str, Any]) -> str:
    """A row for each scheduler: deadlines kept, and readers."""
    heads = [
        f"{load:g} times: {what}"
        for load in LOADS
        for what in ("in time", "readers well", "readers that stall")
    ]
    lines = [
        f"**Deadlines of {rows['deadline']:g} s.**",
        "",
        "| scheduler | " + " | ".join(heads) + " |",
        "| --- |" + " ---: |" * len(heads),
    ]
    for policy in dict.fromkeys(run["policy"] for run in rows["runs"]):
        cells = []
        for load in LOADS:
            runs = [r for r in rows["runs"] if r["policy"] == policy and r["load"] == load]
            for name in ("kept", "read", "stalled"):
                cells.append(f"{np.mean([run[name] for run in runs]):.1%}")
        lines.append(f"| {policy} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
