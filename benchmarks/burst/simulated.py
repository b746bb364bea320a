"""The burst benchmark in the simulator: all workloads at full size, and one parameter changed.

    python benchmarks/burst/simulated.py

Takes a minute or two, needs no server, and writes its tables into docs/benchmarks.md. How far the
simulator is from real SGLang on the emulated device: fidelity.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import track
from run import PAIR, commit
from suite import CONTENDERS, LOADS, MODEL, Load
from table import PAGE, replace_table, table

from tokenflow_sgl.cli.chosen_trace import open_chosen
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.profiles import load_profile
from tokenflow_sgl.profiles.pool import chunked_prefill_size
from tokenflow_sgl.report import figures
from tokenflow_sgl.report.export import run_object
from tokenflow_sgl.sim import EngineOptions, simulate

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


@dataclass(frozen=True, slots=True)
class Job:
    """One run: a workload, how it is labelled, the policy and its parameters."""

    load: str
    label: str
    policy: str
    config: WorkingSetConfig | None = None


def main() -> None:
    names = [name for name, load in LOADS.items() if "FILE" not in load.trace]
    pairs = [Job(name, policy, policy) for name in names for policy in PAIR]
    varied = [
        Job(load, label, "tokenflow", config)
        for load, variants in VARIANTS.items()
        for label, config in variants.items()
    ]
    results: dict[str, Any] = {}
    for job in track([*pairs, *varied], description="simulating"):
        load = LOADS[job.load]
        found = simulated(load, load.trace, job.policy, job.config)
        results.setdefault(job.load, {"runs": {}})["runs"][job.label] = found
    page = PAGE.read_text()
    page = replace_table(page, "simulated", table(results, names, PAIR))
    labels = ("stock", "tokenflow", *(job.label for job in varied))
    page = replace_table(page, "varied", table(results, [*VARIANTS], labels))
    PAGE.write_text(page)


def simulated(
    load: Load, trace: str, policy: str, config: WorkingSetConfig | None = None
) -> dict[str, Any]:
    """A run as `run.py` keeps it, simulated with the same settings."""
    profile = load_profile(load.device, MODEL)
    options = CONTENDERS["tokenflow"]
    ratio = options[options.index("--hicache-ratio") + 1]
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
    simulation = simulate(
        chosen,
        profile,
        EngineOptions(
            max_total_tokens=load.kv_tokens,
            host_tokens=int(float(ratio) * load.kv_tokens),
            chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        ),
        policy=SIMULATED.get(policy, policy),
        config=config,
    )
    return {"commit": commit(), **run_object(figures(simulation.run))}


if __name__ == "__main__":
    main()
