"""Placement layer by layer in real SGLang on an emulated A5000, beside the simulator of it.

    python benchmarks/papers/orbitflow/live_layers.py --seed 1 2 3
    python benchmarks/papers/orbitflow/live_layers.py --seed 2 --only request-wise
    python benchmarks/papers/orbitflow/live_layers.py --seed 1 2 3 --served

The requests of `reproduce.py`: 0.97 per minute, four streams and 32,768 KV tokens together at most,
of which the device holds 16,384. SGLang's own scheduler admits them, and `--tokenflow-layerwise`
places their KV. No stream pauses, so that one run answers for all objectives. Time is virtual:
figures repeat, whatever else runs. A draw takes some minutes for each contender; `--served`
simulates beside what was served before. The figures go to benchmarks/results/orbitflow/, and from
there into README.md's tables beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from engine_rules import Even, Pays
from live import answers_of
from live_beside_simulated import Column, keep, table
from reproduce import (
    BLOCK,
    KERNELS,
    PAGE,
    RESULTS,
    SERVERS,
    limits_of,
    objective,
    requests_of,
)
from reproduce import Load as Asked
from run import measure
from suite import Load
from table import replace_table

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.contract import FloatArray
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.runs import read_run
from tokenflow_sgl.lab.sim.layer_wise import EachStep, Limits, OrbitFlow, Placer, serve_batch
from tokenflow_sgl.lab.sim.layer_wise.step_loop import machine_of
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, write_native
from tokenflow_sgl.placement import Layouts, any_number, for_batch

Choices = Callable[[int], Callable[[int], Layouts]]
"""What the solver chooses from, by streams and layers."""
ASKED = Asked()
SERVER = SERVERS[ASKED.server]
SHARED = (
    *("--page-size", str(BLOCK), "--disable-radix-cache"),
    *("--max-running-requests", str(ASKED.rows), "--max-total-tokens", str(ASKED.tokens)),
    *("--tokenflow-layerwise-ratio", f"{ASKED.tokens / SERVER.tokens:g}"),
    "--tokenflow-layerwise",
)
LIVE = {
    name: (*SHARED, planner)
    for name, planner in (
        ("request-wise", "request_wise:RequestWise"),
        ("even", "even"),
        ("auto", "auto"),
    )
}
"""SGLang's options by contender."""
WHOLE_ANSWERS = {
    "SGLANG_INIT_NEW_TOKEN_RATIO": "1",
    "SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR": "1",
    "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": str(ASKED.tokens),
}
"""SGLang keeps memory for whole answers, whose lengths it is told: the simulator's rule."""
SCALES = (1.0, 1.5, 2.5)
"""Of the objective."""
MEANS = (
    Column("tbt mean", "TBT, mean, ms", "{:.1f}", 1e3),
    Column("tbt p95", "P95, ms", "{:.1f}", 1e3),
    Column("tbt p99", "P99, ms", "{:.1f}", 1e3),
    Column("tokens", "tokens/s", "{:.2f}"),
    Column("ttft mean", "TTFT, mean, s", "{:.2f}"),
)
COLUMNS = (
    *(Column(f"tbt {scale:g}", f"TBT kept at {scale:g}", "{:.1%}") for scale in SCALES),
    *(Column(f"tpot {scale:g}", f"TPOT kept at {scale:g}", "{:.1%}") for scale in SCALES),
    *MEANS,
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=LIVE, nargs="+", default=list(LIVE))
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="of lengths and arrivals")
    parser.add_argument("--output", type=Path, default=Path("orbitflow-results"))
    parser.add_argument("--served", action="store_true", help="the runs are in OUTPUT: simulate")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.only:
        for seed in given.seed:
            requests = requests_of(ASKED, seed)
            folder = given.output / f"layers-{seed}-{name}"
            if not given.served:
                serve(name, requests, folder)
            arrival, answers = answers_of(read_run(folder))
            keep(
                RESULTS / f"layers-{seed}.json",
                name,
                LIVE,
                len(requests),
                live=figures(arrival, answers),
                **{
                    knows: simulated(name, requests, *told)
                    for knows, told in simulations().items()
                    if name == "request-wise" or knows == "simulated"
                },
            )
            write()


def serve(name: str, requests: Sequence[TraceRequest], folder: Path) -> None:
    """Serve the requests in real SGLang, and keep the run in `folder`."""
    known = tuple(replace(each, limit_tokens=each.output_tokens, rate=1.0) for each in requests)
    path = folder.with_suffix(".jsonl")
    write_native(path, Trace("a5000", known, Accounting(len(known), len(known))))
    here = str(Path(__file__).parent)
    paths = [here, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ.update(WHOLE_ANSWERS, PYTHONPATH=os.pathsep.join(paths))
    # All are sent at once, and the last ones wait for minutes of the client's clock.
    replay = ("--warm-up-burst", "0", "--timeout", "7200")
    load = Load(str(path), SERVER.device, ASKED.tokens, 1.0, replay, model=SERVER.model)
    measure(load, str(path), name, LIVE[name], folder, None)


def simulations() -> Mapping[str, tuple[Limits, Choices | None]]:
    """What the simulated engine is given, and what the solver chooses from: ever more of ours."""
    paper = limits_of(ASKED)
    stream = replace(paper, staging=Staging.stream)
    return {
        "as in reproduce.py": (paper, None),
        "with the server's choices of layers": (paper, for_batch),
        "and a staging buffer for each stream": (stream, for_batch),
        "simulated": (replace(stream, stores=True), for_batch),
    }


def simulated(
    name: str, requests: Sequence[TraceRequest], limits: Limits, choices: Choices | None
) -> Mapping[str, float]:
    """Figures of a contender in the simulator."""
    profile = load_profile(SERVER.device, SERVER.model)
    placer: Placer = OrbitFlow(np.inf, kernels=KERNELS, choices=choices)
    if name == "even":
        placer = EachStep(BLOCK, any_number(profile.layers), Even(), KERNELS)
    admission = Pays(machine_of(profile, limits), BLOCK, KERNELS) if name == "auto" else None
    served = serve_batch(requests, profile, limits, placer, admission)
    return figures(served.arrival, served.times)


def figures(arrival: FloatArray, answers: Iterable[FloatArray]) -> dict[str, float]:
    """What came of a run, against each objective; seconds.

    Args:
        arrival: Of each request, of shape (requests,).
        answers: When each of its tokens was generated; two at least.
    """
    answers = list(answers)
    alone = objective(load_profile(SERVER.device, SERVER.model), SERVER.tokens)
    gaps = np.concatenate([np.diff(each) for each in answers])
    tpot = np.array([(each[-1] - each[0]) / (len(each) - 1) for each in answers])
    found = {}
    for scale in SCALES:
        within = scale * alone + 1e-9
        found[f"tbt {scale:g}"] = float((gaps <= within).mean())
        found[f"tpot {scale:g}"] = float((tpot <= within).mean())
    last = max(each[-1] for each in answers)
    return found | {
        "tbt mean": float(gaps.mean()),
        "tbt p95": float(np.percentile(gaps, 95)),
        "tbt p99": float(np.percentile(gaps, 99)),
        "tokens": float((gaps.size + len(answers)) / (last - arrival.min())),
        "ttft mean": float((np.array([each[0] for each in answers]) - arrival).mean()),
    }


def write() -> None:
    """Write the tables of what is there into the page."""
    paths = {path.stem.partition("-")[2]: path for path in sorted(RESULTS.glob("layers-*.json"))}
    page = replace_table(PAGE.read_text(), "layers", table("draw", paths, COLUMNS))
    PAGE.write_text(replace_table(page, "left-out", left_out(paths)))


def left_out(paths: Mapping[str, Path]) -> str:
    """What the simulator says of request-wise placement as it is told more of the engine."""
    lines = ["| draw | simulated | " + " | ".join(each.heading for each in MEANS) + " |"]
    lines.append("| ---: | --- |" + " ---: |" * len(MEANS))
    for draw, path in paths.items():
        run = json.loads(path.read_text())["runs"].get("request-wise", {})
        for name in simulations() if run else ():
            cells = [each.simulated(run[name][each.key], run["live"][each.key]) for each in MEANS]
            shown = "and copies to the host" if name == "simulated" else name
            lines.append("| " + " | ".join([draw, shown, *cells]) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
