"""The burst benchmark in the simulator: all workloads at full size, and one parameter changed.

    python benchmarks/burst/simulated.py
    python benchmarks/burst/simulated.py --azure AzureLLMInferenceTrace_conv.csv

Takes some minutes, needs no server, and writes its tables into docs/paper-setting.md; those of real
traces only if their files are given (--azure, --mooncake). How far the simulator is from real
SGLang on the emulated device: fidelity.py. The simulated server sees the client's limit of each
answer and not its length; stock and tokenflow also run with known lengths. A column says which.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from devices import simulated_device
from rich.console import Console
from rich.progress import track
from run import KNOWN, PAIR, commit
from suite import LOADS, Load
from table import COLUMNS, PAGE, Run, lengths, replace_table, table

from tokenflow_sgl.cli.chosen_trace import TraceChoice
from tokenflow_sgl.lab import runs as recorded
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.report.export import run_object
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.study.bounds import bounds
from tokenflow_sgl.lab.sim.study.clairvoyant import clairvoyant
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.lab.traces import open_trace
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.learned_lengths import Evidence

SIMULATED = {"stock": "fcfs"}
"""What the simulator calls a contender, if it has another name for it."""

VARIANTS = {
    "4090-a": {
        **{f"burst-eta {eta:g}": WorkingSetConfig(burst_eta=eta) for eta in (1.35, 2.0)},
        "eta 1": WorkingSetConfig(eta=1.0),
    },
    "4090-b": {
        **{f"cycle {seconds:g} s": WorkingSetConfig(cycle=seconds) for seconds in (0.5, 1.0, 1.5)},
        **{f"mu {mu:g}": WorkingSetConfig(switch_factor=mu) for mu in (1.0, 5.0, 20.0)},
        **{f"eta {eta:g}": WorkingSetConfig(eta=eta) for eta in (0.8, 0.95, 1.0, 1.1)},
        **{f"hysteresis {s:g} s": WorkingSetConfig(hysteresis=s) for s in (3.0, 10.0, 14.0)},
    },
}
"""tokenflow with one parameter changed, the others as shipped, by workload."""
FIRST_COME = WorkingSetConfig(overtake=0.0)

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
BOTH = (*PAIR, *(policy + KNOWN for policy in PAIR))
"""Stock and tokenflow without and with known lengths."""
FIRST = 16
"""Requests of a trace whose mean TTFT is looked at on its own: the first ones."""


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
    given = parser.parse_args()
    named, files = workloads(given.azure, given.mooncake)
    with on_cores() as spread:
        every = jobs(named, files)
        every.sort(key=lambda job: job.name, reverse=True)  # the long ones first
        results: dict[str, Any] = {}
        runs = spread(_run, None, every)
        for job, found in zip(every, track(runs, "simulating", len(every)), strict=True):
            results.setdefault(job.name, {"runs": {}})["runs"][job.label] = found
    write(results, named, files)


Workloads = dict[str, tuple[Load, str]]
"""By name: what runs, and its trace."""


def workloads(azure: str | None, mooncake: str | None) -> tuple[Workloads, Workloads]:
    """The eight of Table 1, and those of the real traces whose files are given."""
    named = {name: (load, load.trace) for name, load in LOADS.items() if "FILE" not in load.trace}
    files: Workloads = {}
    if mooncake:
        files["mooncake"] = LOADS["mooncake"], f"mooncake:{mooncake}"
    if azure:
        files |= {name: (load, f"azure:{azure}") for name, load in AZURE.items()}
    return named, files


def jobs(named: Workloads, files: Workloads) -> list[Job]:
    """All runs of the page's tables, those first that matter most."""
    pairs, real = (
        [
            Job(*what, name, policy + (KNOWN if known else ""), policy, known_lengths=known)
            for name, what in some.items()
            for known in (False, True)
            for policy in PAIR
        ]
        for some in (named, files)
    )
    rivals = [
        Job(*named[name], name, rival, rival)
        for name in CONTESTED
        for rival in RIVALS
        if rival not in PAIR
    ]
    variants = {
        "tokenflow, paced": (PACED, [name for name in files if name.endswith("all")]),
        "tokenflow, overtake 0": (
            FIRST_COME,
            [name for name in files if name == "mooncake" or "4x" in name],
        ),
    }
    real += [
        Job(*files[name], name, label, "tokenflow", config)
        for label, (config, names) in variants.items()
        for name in names
    ]
    varied = [
        Job(*named[name], name, label, "tokenflow", config)
        for name, configs in VARIANTS.items()
        for label, config in configs.items()
    ]
    return [*pairs, *rivals, *real, *varied]


def write(results: dict[str, Any], named: Workloads, files: Workloads) -> None:
    """Write the tables into the page."""
    page = PAGE.read_text()
    page = replace_table(page, "simulated", table(results, [*named], BOTH))
    page = replace_table(page, "costs", _costs(results, [*named, *files]))
    columns = COLUMNS | {
        "E2E per token, P90, ms": lambda run: 1e3 * run["tokenflow"]["e2e_per_token_s"]["p90"]
    }
    page = replace_table(page, "rivals", table(results, [*CONTESTED], RIVALS, columns))
    labels = dict.fromkeys([*PAIR, *(label for configs in VARIANTS.values() for label in configs)])
    page = replace_table(page, "varied", table(results, [*VARIANTS], [*labels]))
    page = replace_table(page, "limits", _limits(named, results))
    if files:
        labels = (*PAIR, "tokenflow, paced", "tokenflow, overtake 0", *BOTH[len(PAIR) :])
        page = replace_table(page, "real", table(results, [*files], labels))
    PAGE.write_text(page)


COSTS: dict[str, Callable[[Run], float]] = {
    f"mean TTFT of the first {FIRST}": lambda run: run["first_ttft_s"],
    "TPOT, P50": lambda run: run["tokenflow"]["tpot_s"]["p50"],
    "end to end, mean": lambda run: run["tokenflow"]["e2e_s"]["mean"],
    "TBT, P99.9": lambda run: run["tokenflow"]["tbt_s"]["p999"],
}


def _costs(results: dict[str, Any], loads: list[str]) -> str:
    """What tokenflow has without the lengths over what it has with them, and over stock."""
    heads = ["workload", "effective, of that with known lengths", *COSTS]
    heads += ["readers that stall", "stall, P99, s"]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for load in loads:
        runs = results[load]["runs"]
        stock, ours, known = (runs[name] for name in (*PAIR, "tokenflow" + KNOWN))
        share = _effective(ours) / _effective(known)
        ratios = [figure(ours) / figure(stock) for figure in COSTS.values()]
        shown = [f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.2f}x" for ratio in ratios]
        stalled = (f"{run['tokenflow']['stalled_share']:.0%}" for run in (stock, ours))
        longest = (f"{run['tokenflow']['stall_per_request_s']['p99']:.2f}" for run in (stock, ours))
        cells = [load, f"{share:.0%}", *shown, " → ".join(stalled), " → ".join(longest)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _effective(run: Run) -> float:
    return float(run["tokenflow"]["effective_throughput"])


def _run(shared: None, job: Job) -> dict[str, Any]:
    return simulated(job.load, job.trace, job.policy, job.config, known_lengths=job.known_lengths)


def _limits(named: dict[str, tuple[Load, str]], results: dict[str, Any]) -> str:
    """How near to what can be done stock and tokenflow come."""
    heads = ["workload", "run", "lengths", "effective, of the bound"]
    heads.append("waiting, over the no-stall schedule")
    lines = ["| " + " | ".join(heads) + " |", "| --- | --- | --- | ---: | ---: |"]
    for name, (load, trace) in named.items():
        profile, options = simulated_device(load.device, load.kv_tokens)
        limit = bounds(open_trace(trace), profile, options)
        known = clairvoyant(open_trace(trace), profile, options)
        for who in BOTH:
            run = results[name]["runs"][who]
            found = run["tokenflow"]
            waiting = found["ttft_s"]["mean"] + found["stall_per_request_s"]["mean"]
            share = _effective(run) / limit.effective_throughput
            lines.append(
                f"| {name} | {who.removesuffix(KNOWN)} | {lengths(run)} | "
                f"{share:.0%} of {limit.effective_throughput:,.0f} tokens/s | "
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
    warm_up_burst: int = 0,
    evidence: Evidence | None = None,
) -> dict[str, Any]:
    """A run as `run.py` keeps it, simulated with the same settings.

    evidence: Of earlier answers; None: none has ended.
    warm_up_burst: Requests that a measured server has served before; 0: it starts cold.
    """
    given = dict(zip(load.replay[::2], load.replay[1::2], strict=True))
    speed_up = given.get("--speed-up")
    choice = TraceChoice(
        window=given.get("--window"),
        speed_up=float(speed_up) if speed_up else None,
        rate=given.get("--rate"),
    )
    chosen = choice.open(trace, Console(stderr=True))
    profile, options = simulated_device(load.device, load.kv_tokens, load.link, page_size)
    policy = SIMULATED.get(policy, policy)
    simulation = simulate(
        chosen,
        profile,
        options,
        policy=policy,
        config=config,
        known_lengths=known_lengths,
        evidence=evidence,
        warm_up_burst=warm_up_burst,
    )
    found = {"commit": commit(), "first_ttft_s": first_ttft(simulation.run)}
    return found | run_object(figures(simulation.run))


def first_ttft(run: recorded.Run, count: int = FIRST) -> float:
    """Mean TTFT of the requests that came first."""
    came = run.requests["scheduled_s"].to_numpy()
    owner, time = (run.tokens[name].to_numpy() for name in ("request", "time_s"))
    served, begin = np.unique(owner, return_index=True)
    first = np.full(len(came), np.nan)
    first[served] = time[begin]
    early = np.argsort(came, kind="stable")[:count]
    return float(np.mean(first[early] - came[early]))


if __name__ == "__main__":
    main()
