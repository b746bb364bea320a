"""TokenFlow's evaluation (EuroSys'26, section 7), simulated: our figure beside the paper's.

    python benchmarks/papers/tokenflow/reproduce.py
    python benchmarks/papers/tokenflow/reproduce.py --known-lengths

Takes some minutes on two cores and writes the tables and pictures of README.md beside this file.
The server sees the client's limit of each answer and not its length, unless --known-lengths.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.progress import track

from tokenflow_sgl.contract import Policy
from tokenflow_sgl.lab.report import figures
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.study.spread import on_cores
from tokenflow_sgl.lab.traces import open_trace, transform
from tokenflow_sgl.lab.traces.generators.reading_rates import parse_rates
from tokenflow_sgl.lab.traces.workloads import WORKLOADS
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.baselines import PaperConfig, PaperPolicy
from tokenflow_sgl.policy.selection import Penalty

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))

from devices import simulated_device
from run import commit
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
SLOW_LINK = 2.0
"""GB/s of the slower of the two links of the ablation."""


def paper(**given: Any) -> Policy:
    """The paper's policy, as printed but for what is given."""
    return PaperPolicy(PaperConfig(**given))


POLICIES: Mapping[str, str | Policy] = {
    "SGLang": "fcfs",
    "SGLang (chunked)": "chunked",
    "Andes": "andes",
    "the paper's, as printed": paper(),
    "the paper's, sign corrected": paper(penalty=Penalty.CORRECTED),
    "tokenflow": "tokenflow",
}
ABLATION: Mapping[str, tuple[dict[str, Any], float]] = {
    "all of it": ({}, 66.00),
    "without offload": ({"host_tokens": 0}, 127.28),
    "without write-through": ({"hicache_write_policy": "write_back"}, 82.76),
    "without load-evict overlap": ({"load_evict_overlap": False}, 74.43),
}
"""SGLang's settings, and the makespan of Table 2 in seconds."""
RATES = (20, 25, 30)
INTERVALS = (0.5, 1.0, 1.5)
CONSERVATIVENESS = (1.0, 5.0, 20.0)


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation: workload, policy, and what differs from the others of its table."""

    workload: str
    policy: str | Policy
    settings: dict[str, Any] = field(default_factory=dict)
    config: WorkingSetConfig | None = None
    rate: int | None = None
    link: float | None = None
    known_lengths: bool = False


def run(shared: None, job: Job) -> dict[str, float]:
    """What the tables show of a simulation."""
    workload = WORKLOADS[job.workload]
    profile, options = simulated_device(workload.device, workload.kv_tokens, job.link)
    trace = open_trace(job.workload)
    if job.rate:
        trace = transform.with_rates(trace, parse_rates(str(job.rate)), 0)
    options = dataclasses.replace(options, **job.settings)
    done = simulate(
        trace,
        profile,
        options,
        policy=job.policy,
        config=job.config,
        known_lengths=job.known_lengths,
    )
    found = figures(done.run)
    return {
        "makespan": found.throughput.makespan,
        "effective": found.throughput.effective,
        "raw": found.throughput.token,
        "ttft": found.latency.ttft.mean,
        "p99": found.latency.ttft.p99,
        "stall": found.readers.stall_mean,
        "preempted": float(done.preempted),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--known-lengths", action="store_true", help="each answer's limit is its length"
    )
    known = parser.parse_args().known_lengths
    jobs: dict[tuple[Any, ...], Job] = {}
    for load in WORKLOADS:
        for name, policy in POLICIES.items():
            jobs["table 1", load, name] = Job(load, policy)
    for name, (settings, _) in ABLATION.items():
        for who, policy in (("paper", paper(penalty=Penalty.CORRECTED)), ("ours", "tokenflow")):
            for link in (None, SLOW_LINK):
                jobs["table 2", name, who, link] = Job("4090-b", policy, settings, link=link)
    for load in ("4090-b", "h200-a"):
        for rate in RATES:
            for name in ("SGLang", "tokenflow"):
                jobs["figure 20", load, rate, name] = Job(load, POLICIES[name], rate=rate)
    for seconds in INTERVALS:
        corrected = paper(penalty=Penalty.CORRECTED, interval=seconds)
        jobs["figure 22", seconds, "paper"] = Job("4090-b", corrected)
        cycle = WorkingSetConfig(cycle=seconds)
        jobs["figure 22", seconds, "ours"] = Job("4090-b", "tokenflow", config=cycle)
    for mu in CONSERVATIVENESS:
        corrected = paper(penalty=Penalty.CORRECTED, conservativeness=mu)
        jobs["figure 23", mu, "paper"] = Job("4090-b", corrected)
        config = WorkingSetConfig(switch_factor=mu)
        jobs["figure 23", mu, "ours"] = Job("4090-b", "tokenflow", config=config)
    with on_cores() as spread:
        # The long ones first: the last core to finish decides.
        order = sorted(jobs, key=lambda key: jobs[key].workload, reverse=True)
        every = [dataclasses.replace(jobs[key], known_lengths=known) for key in order]
        results = spread(run, None, every)
        done = dict(zip(order, track(results, "simulating", total=len(order)), strict=True))
    page = PAGE.read_text()
    for name, text in (
        ("table-1", table_1(done)),
        ("table-2", table_2(done)),
        ("figure-20", figure_20(done)),
        ("figure-22", varied(done, "figure 22", INTERVALS, "{:g} s")),
        ("figure-23", varied(done, "figure 23", CONSERVATIVENESS, "mu {:g}")),
        (
            "commit",
            f"Simulated with {commit()}; the server {'knew' if known else 'did not know'} "
            "the answers' lengths.\n",
        ),
    ):
        page = replace_table(page, name, text)
    PAGE.write_text(page)
    draw(done, PAGE.with_name("table-1.png"))


def rows(heads: Sequence[str], cells: Sequence[Sequence[str]], words: int) -> str:
    """A Markdown table; the first `words` columns are words."""
    lines = ["| " + " | ".join(heads) + " |"]
    lines.append("|" + " --- |" * words + " ---: |" * (len(heads) - words))
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join(lines) + "\n"


def table_1(done: Mapping[Any, dict[str, float]]) -> str:
    cells = []
    for load in WORKLOADS:
        base = done["table 1", load, "SGLang"]
        for name in POLICIES:
            found = done["table 1", load, name]
            ratios = [f"{found[key] / base[key]:.2f}x" for key in ("effective", "raw")]
            ratios += [
                f"{found[key]:.3g} s ({found[key] / base[key]:.2f}x)" for key in ("ttft", "p99")
            ]
            cells.append([load, name, *ratios, f"{found['stall']:.3g} s"])
    heads = ("setup", "scheduler", "effective", "raw", "mean TTFT", "P99 TTFT", "mean stall")
    return rows(heads, cells, 2)


def table_2(done: Mapping[Any, dict[str, float]]) -> str:
    whole = ABLATION["all of it"][1]
    cells = []
    for name, (_, seconds) in ABLATION.items():
        row = [name, f"{seconds:.2f} s ({seconds / whole:.2f}x, {seconds - whole:+.1f} s)"]
        for who in ("paper", "ours"):
            for link in (None, SLOW_LINK):
                found = done["table 2", name, who, link]["makespan"]
                base = done["table 2", "all of it", who, link]["makespan"]
                row.append(f"{found:.1f} s ({found / base:.2f}x, {found - base:+.1f} s)")
        cells.append(row)
    slow = f"{SLOW_LINK:g} GB/s"
    heads = (
        "",
        "the paper",
        "its policy, simulated",
        f"the same, {slow}",
        "tokenflow, simulated",
        f"the same, {slow}",
    )
    return rows(heads, cells, 1)


def figure_20(done: Mapping[Any, dict[str, float]]) -> str:
    cells = []
    for load in ("4090-b", "h200-a"):
        for rate in RATES:
            base = done["figure 20", load, rate, "SGLang"]
            found = done["figure 20", load, rate, "tokenflow"]
            cells.append(
                [
                    f"{load}, {rate} tokens/s",
                    f"{base['effective']:,.0f}",
                    f"{found['effective']:,.0f} ({found['effective'] / base['effective']:.2f}x)",
                    f"{base['ttft']:.3g} s",
                    f"{found['ttft']:.3g} s ({found['ttft'] / base['ttft']:.2f}x)",
                ]
            )
    heads = ("readers", "SGLang, effective", "tokenflow", "SGLang, mean TTFT", "tokenflow")
    return rows(heads, cells, 1)


def varied(
    done: Mapping[Any, dict[str, float]], which: str, values: Sequence[float], form: str
) -> str:
    cells = []
    for who, name in (("paper", "the paper's, sign corrected"), ("ours", "tokenflow")):
        for value in values:
            found = done[which, value, who]
            cells.append(
                [
                    name,
                    form.format(value),
                    f"{found['effective']:,.0f}",
                    f"{found['ttft']:.3g} s",
                    f"{found['stall']:.3g} s",
                    f"{found['preempted']:,.0f}",
                ]
            )
    heads = ("policy", "", "effective tokens/s", "mean TTFT", "mean stall", "preemptions")
    return rows(heads, cells, 2)


def draw(done: Mapping[Any, dict[str, float]], path: Path) -> None:
    """Effective throughput and mean waiting of Table 1's setups, over SGLang's."""
    picture = Figure(figsize=(11, 6), layout="constrained")
    FigureCanvasAgg(picture)
    for axes, key, title in zip(
        picture.subplots(2, 1, sharex=True),
        ("effective", "waiting"),
        ("effective throughput, SGLang = 1", "TTFT and stalls together, SGLang = 1"),
        strict=True,
    ):
        for place, name in enumerate(POLICIES):
            heights = []
            for load in WORKLOADS:
                base, found = done["table 1", load, "SGLang"], done["table 1", load, name]
                if key == "waiting":
                    ratio = (found["ttft"] + found["stall"]) / (base["ttft"] + base["stall"])
                else:
                    ratio = found[key] / base[key]
                heights.append(ratio)
            width = 0.8 / len(POLICIES)
            at = [number + (place - 2.5) * width for number in range(len(WORKLOADS))]
            axes.bar(at, heights, width, label=name)
        axes.axhline(1.0, color="black", linewidth=0.6)
        axes.set_title(title, loc="left", fontsize="medium")
        axes.set_xticks(range(len(WORKLOADS)), list(WORKLOADS))
        axes.spines[["top", "right"]].set_visible(False)
    picture.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=6)
    picture.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
