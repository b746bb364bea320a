"""OrbitFlow's evaluation (PVLDB 19(1), section 5), simulated: our figures beside the paper's.

    python benchmarks/papers/orbitflow/reproduce.py rates scales
    python benchmarks/papers/orbitflow/reproduce.py contexts cv rows order large

Each load takes about 20 s on one core. Results are kept in benchmarks/results/orbitflow/, and the
tables of README.md beside this file are made of all that are there. Placements are executed layer
by layer by the fluid model (`tokenflow_sgl.lab.sim.layer_wise`).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.sim.layer_wise import (
    AtChanges,
    DeepSpeed,
    EachStep,
    Limits,
    OrbitFlow,
    Placer,
    Static,
    attained,
    serve_batch,
)
from tokenflow_sgl.lab.sim.layer_wise.step_loop import machine_of
from tokenflow_sgl.lab.traces import TraceRequest
from tokenflow_sgl.placement import blocks_after, every_kth, kernels_of
from tokenflow_sgl.placement.baselines import (
    dynamic_heuristic,
    flexgen,
    flexgen_plus,
    slo_aware,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))

from run import ROOT, commit
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "orbitflow"


@dataclass(frozen=True, slots=True)
class Server:
    """What serves a model, and the KV tokens that its memory holds."""

    device: str
    model: str
    tokens: int


SERVERS: Mapping[str, Server] = {
    "a5000": Server("a5000pcie3", "llama3-8b", 16384),
    "4 x a6000": Server("a6000x4", "llama3-70b", 65536),
}
"""Section 5.1 has the first one's memory. It says nothing of the other's: half of the largest batch
is an assumption, which is the first one's share."""
BLOCK = 16
KERNELS = kernels_of(compiled=True)
PER_MINUTE = 0.97
"""Requests per minute of the sensitivity studies (section 5.1)."""
SCALE = 1.5
REQUESTS = 40


@dataclass(frozen=True, slots=True)
class Load:
    """Requests and limits of one run.

    Attributes:
        per_minute: Requests.
        scale: Of the objective.
        tokens: Of a batch at most.
        cv: Coefficient of variation of the times between arrivals.
        rows: Streams of a batch at most.
        order: Who joins the batch next: "fcfs", or "srtf", the one with the shortest answer.
        server: Of `SERVERS`.
    """

    per_minute: float = PER_MINUTE
    scale: float = SCALE
    tokens: int = 32768
    cv: float = 1.0
    rows: int = 4
    order: str = "fcfs"
    server: str = "a5000"


PARTS: Mapping[str, Sequence[Load]] = {
    "rates": [Load(rate) for rate in (0.25, 0.5, 0.97, 1.5)],
    "scales": [Load(scale=scale) for scale in (1.0, 1.5, 2.0, 2.5)],
    "contexts": [
        Load(tokens=tokens, scale=scale)
        for tokens, scale in itertools.product((8192, 32768), (1.5, 2.5))
    ],
    "cv": [Load(cv=cv) for cv in (1.0, 2.0, 4.0, 6.0)],
    "rows": [Load(rows=rows) for rows in (2, 4, 8, 16)],
    "order": [Load(order=order) for order in ("fcfs", "srtf")],
    "large": [
        Load(tokens=tokens, scale=scale, server="4 x a6000")
        for tokens, scale in itertools.product((8192, 32768, 131072), (1.5, 2.5))
    ],
}


def objective(profile: DeviceProfile, tokens: int) -> float:
    """Seconds of a decode step of the longest request that fits without offloading."""
    return profile.decode_seconds(1, tokens)


def limits_of(load: Load, deposit: float | None = None) -> Limits:
    """What the engine is given."""
    alone, srtf = SERVERS[load.server].tokens, load.order == "srtf"
    return Limits(load.rows, load.tokens, alone, deposit=deposit, shortest_first=srtf)


def requests_of(load: Load, seed: int = 1) -> list[TraceRequest]:
    """Log-normal lengths, about a quarter of the batch's tokens on average, and gamma arrivals."""
    rng = np.random.default_rng(seed)
    most = load.tokens
    prompts = np.clip(rng.lognormal(np.log(most / 8), 0.9, REQUESTS), 64, most * 0.6)
    answers = np.clip(rng.lognormal(np.log(most / 12), 0.8, REQUESTS), 64, most * 0.4)
    shape = 1.0 / load.cv**2
    gaps = rng.gamma(shape, 60.0 / load.per_minute / shape, REQUESTS)
    return [
        TraceRequest(float(time), int(prompt), int(answer))
        for time, prompt, answer in zip(np.cumsum(gaps), prompts, answers, strict=True)
    ]


def placers(profile: DeviceProfile, load: Load, slo: float) -> dict[str, Callable[[], Placer]]:
    """The systems by name."""
    layouts = every_kth(profile.layers)
    limits = limits_of(load)
    peak = np.full(load.rows, load.tokens // load.rows)
    worst = blocks_after(peak, 0, BLOCK), machine_of(profile, limits)(load.rows, load.tokens)
    static = flexgen([worst], layouts, KERNELS)
    assert static is not None, "all layers of the largest batch fit the host"
    return {
        "DeepSpeed": lambda: DeepSpeed(BLOCK),
        "FlexGen": lambda: Static(BLOCK, layouts, static, KERNELS),
        "FlexGen+": lambda: AtChanges(BLOCK, layouts, flexgen_plus, KERNELS),
        "SLO-aware": lambda: AtChanges(BLOCK, layouts, slo_aware(slo), KERNELS),
        "Dynamic Heuristic": lambda: EachStep(BLOCK, layouts, dynamic_heuristic, KERNELS),
        "request-wise": lambda: OrbitFlow(np.inf, kernels=KERNELS),
        "pause-resume": lambda: OrbitFlow(slo, kernels=KERNELS),
    }


def run(load: Load) -> dict[str, Any]:
    """The figures of all systems, each without and with a deposit."""
    server = SERVERS[load.server]
    profile = load_profile(server.device, server.model)
    slo = load.scale * objective(profile, server.tokens)
    requests = requests_of(load)
    found: dict[str, Any] = {}
    for name, make in placers(profile, load, slo).items():
        for deposit in (None, slo):
            if name == "pause-resume" or deposit is None:
                # A deposit changes what is delivered; only ours also looks at it.
                placer, begun = make(), time.process_time()
                served = serve_batch(requests, profile, limits_of(load, deposit), placer)
                spent = time.process_time() - begun
            figures = dataclasses.asdict(attained(served, slo, deposit=deposit is not None))
            figures.update(
                paused=served.paused,
                migrating=served.migrating / served.decoding,
                plans=getattr(placer, "plans", 0),
                cpu=spent,
            )
            found[f"{name}, deposit" if deposit else name] = figures
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=[*PARTS, "table"], nargs="+")
    parser.add_argument("--only", type=int, help="the load of this number alone")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for part in given.part:
        loads = PARTS.get(part, ())
        for load in track(loads if given.only is None else [loads[given.only]], part):
            kept = {"commit": commit(), "load": dataclasses.asdict(load), "runs": run(load)}
            path_of(load).write_text(json.dumps(kept, indent=1) + "\n")
    page = PAGE.read_text()
    for part in PARTS:
        page = replace_table(page, part, table(part))
    PAGE.write_text(page)


def path_of(load: Load) -> Path:
    """Where the figures of a load are kept: several parts have the same."""
    shown = [
        value.replace(" ", "") if isinstance(value, str) else f"{value:g}"
        for value in dataclasses.astuple(load)
    ]
    return RESULTS / ("-".join(shown) + ".json")


def table(part: str) -> str:
    """A part's figures, all systems."""
    rows = [json.loads(path_of(load).read_text()) for load in PARTS[part] if path_of(load).exists()]
    first = dataclasses.asdict(PARTS[part][0])
    differ = [
        key for key in first if len({dataclasses.asdict(load)[key] for load in PARTS[part]}) > 1
    ]
    lines = [
        "| " + " | ".join(NAMES[key] for key in differ) + " | system | TBT kept | with deposit "
        "| TPOT kept | with deposit | TBT P95, ms | P99, ms | TPOT P99, ms | TTFT, mean, s | P95 "
        "| end to end, s | requests/min | pauses | commit |",
        "|" + " ---: |" * len(differ) + " --- |" + " ---: |" * 12 + " --- |",
    ]
    for row in rows:
        for name, found in row["runs"].items():
            if name.endswith(", deposit"):
                continue
            held = row["runs"][f"{name}, deposit"]
            loads = [row["load"][key] for key in differ]
            cells = [load if isinstance(load, str) else f"{load:g}" for load in loads] + [name]
            cells += [
                f"{100 * each[key]:.1f}%" for key in ("tbt", "tpot") for each in (found, held)
            ]
            cells += [f"{1e3 * found[key]:.0f}" for key in ("tbt_p95", "tbt_p99", "tpot_p99")]
            cells += [f"{found[key]:.0f}" for key in ("ttft", "ttft_p95", "end_to_end")]
            cells += [f"{60 * found['requests']:.2f}"]
            cells += [f"{found['paused']}", row["commit"]]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


NAMES = {
    "per_minute": "requests/min",
    "scale": "SLO scale",
    "tokens": "batch tokens",
    "cv": "CV",
    "rows": "batch",
    "order": "order",
}

if __name__ == "__main__":
    main()
