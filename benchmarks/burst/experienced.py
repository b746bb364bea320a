"""A server that knows how long answers get, but not each one: the eight workloads, simulated.

    python benchmarks/burst/experienced.py
    python benchmarks/burst/experienced.py 4090-a h200-b --answers 64

Before the run the server has seen so many answers of the same distribution, of other draws: what
`--tokenflow-lengths-file` brings from the day before. Beside it a server that starts cold, and one
that is told the length of every answer. Takes some minutes; the table goes into
docs/paper-setting.md if all workloads ran.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count, islice
from typing import Any

from rich.progress import track
from simulated import simulated
from suite import LOADS
from table import PAGE, replace_table

from tokenflow_sgl.contract import Traits
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.lab.traces import TraceRequest, open_trace
from tokenflow_sgl.lab.traces.output_limits import client_limits
from tokenflow_sgl.policy.learned_lengths import Evidence, LearnedLengths

NAMES = tuple(name for name, load in LOADS.items() if "FILE" not in load.trace)
ANSWERS = 512
FIRST_SEED = 1000
"""The workloads themselves are of seed 0."""
Job = tuple[str, int | None]
"""A workload, and the answers that the server has seen; None: it is told each length."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="WORKLOAD", help="default: all eight")
    parser.add_argument("--answers", type=int, default=ANSWERS, help="default: %(default)s")
    given = parser.parse_args()
    if given.answers < 1:
        parser.error(f"--answers is {given.answers}; allowed is 1 or more")
    names = tuple(given.names) or NAMES
    if unknown := {*names} - {*NAMES}:
        parser.error(f"WORKLOAD is {min(unknown)!r}; allowed is {', '.join(NAMES)}")
    jobs: list[Job] = [(name, seen) for name in names for seen in (0, given.answers, None)]
    with on_cores() as spread:
        runs = track(spread(_run, None, jobs), "simulating", len(jobs))
        found = dict(zip(jobs, runs, strict=True))
    lines = [
        "| workload | lengths | effective tokens/s | tokens/s | mean TTFT, s | P99 TTFT, s "
        "| stall, s | readers that stall |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    lines += [_row(job, run, found[job[0], None]) for job, run in found.items()]
    text = "\n".join(lines) + "\n"
    print(text)
    if names == NAMES:
        PAGE.write_text(replace_table(PAGE.read_text(), "experienced", text))


def _run(shared: None, job: Job) -> dict[str, Any]:
    name, seen = job
    load = LOADS[name]
    found = simulated(
        load,
        load.trace,
        "tokenflow",
        known_lengths=seen is None,
        evidence=evidence(load.trace, seen) if seen else None,
    )
    run: dict[str, Any] = found["tokenflow"]
    return run


def evidence(trace: str, answers: int) -> Evidence:
    """What a server has learned from answers like those of a named workload."""
    learned = LearnedLengths()
    for request, limit in islice(_others(trace), answers):
        traits = Traits(request.prompt_tokens, limit, request.qos_class or "")
        learned.ended(learned.kind(traits), request.output_tokens, cut_off=False)
    return learned.evidence()


def _others(trace: str) -> Iterator[tuple[TraceRequest, int]]:
    """Requests of other draws, and what their clients allow."""
    for seed in count(FIRST_SEED):
        requests = open_trace(f"{trace}?seed={seed}").requests
        yield from zip(requests, client_limits(requests), strict=True)


def _row(job: Job, run: dict[str, Any], known: dict[str, Any]) -> str:
    name, seen = job
    of_known = run["effective_throughput"] / known["effective_throughput"]
    stall = run["stall_per_request_s"]["mean"]
    cells = [
        name,
        "known" if seen is None else f"after {seen:,} answers" if seen else "unknown",
        f"{run['effective_throughput']:,.0f} ({of_known:.0%})",
        f"{run['token_throughput']:,.0f}",
        f"{run['ttft_s']['mean']:.2f}",
        f"{run['ttft_s']['p99']:.2f}",
        f"{stall:.2f}",
        f"{run['stalled_share']:.0%}",
    ]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
