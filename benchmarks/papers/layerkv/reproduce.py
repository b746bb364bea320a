"""LayerKV's evaluation (arXiv 2410.00428, section 5), simulated: our figures beside the paper's.

    python benchmarks/papers/layerkv/reproduce.py sharegpt --sharegpt LENGTHS.csv --rates 4 5 6 7
    python benchmarks/papers/layerkv/reproduce.py contexts --contexts 128 1024 4096 16384

The lengths are those of docs/traces.md. Each rate and each context is minutes on one core. Results
are kept in benchmarks/results/layerkv/, and the tables of README.md beside this file are made of
all that are there. Streams are executed whole: no layer of a stream moves without the others.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.progress import track

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Trace, TraceRequest, open_trace
from tokenflow_sgl.lab.traces.request import Accounting
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED, QosClass, QosClasses

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))

from run import ROOT, commit
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "layerkv"
MODELS = {"llama2-7b": "l20", "yi-34b": "l20x2", "llama3-70b": "l20x4"}
"""Models and the devices that serve them (section 5.1)."""
TTFT_SLO, TPOT_SLO = 3.0, 0.2
"""Seconds (section 5.2.4)."""
LONGEST_PROMPT, LONGEST = 1024, 2048
"""Tokens of a prompt, and with its answer: of others vLLM's own benchmark makes no requests."""
ANSWER = 512
"""Tokens of each answer where contexts are fixed (section 1)."""
SECONDS = 200.0
"""Of arrivals."""
HOST = 8
"""KV tokens on the host per one on the device; the paper's machine has 2 TB."""
NAMED = QosClass("slo", 1.0 / TPOT_SLO, ttft_slo=TTFT_SLO, tpot_slo=TPOT_SLO)
CLASSES = QosClasses({**SHIPPED, NAMED.name: NAMED}, SHIPPED["reading"])


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to serve: a scheduler, and tokenflow's parameters."""

    policy: str
    config: WorkingSetConfig = field(default_factory=WorkingSetConfig)


CONTENDERS: Mapping[str, Contender] = {
    "vllm": Contender("vllm"),
    "fcfs": Contender("fcfs"),
    "demand": Contender("tokenflow"),
    "slo": Contender("tokenflow", WorkingSetConfig(admission="slo")),
    "both": Contender("tokenflow", WorkingSetConfig(admission="both")),
    "all admitted": Contender("tokenflow", WorkingSetConfig(eta=10.0, burst_eta=10.0)),
}
"""The last one is the ablation: whole requests are parked, and no rule holds newcomers back."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("load", choices=["sharegpt", "contexts", "table"])
    parser.add_argument("--model", choices=MODELS, default="llama2-7b")
    parser.add_argument("--sharegpt", metavar="FILE", help="lengths of conversations")
    parser.add_argument("--rates", type=float, nargs="+", default=[4, 5, 6, 7])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024, 4096, 16384])
    parser.add_argument("--only", choices=CONTENDERS, nargs="+", default=list(CONTENDERS))
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    loads: dict[str, Trace] = {}
    if given.load == "sharegpt":
        if not given.sharegpt:
            parser.error("--sharegpt is needed")
        loads = {f"{r:g}": sharegpt(given.sharegpt, r, given.seed) for r in given.rates}
    elif given.load == "contexts":
        loads = {str(tokens): fixed(tokens, given.seed) for tokens in given.contexts}
    RESULTS.mkdir(parents=True, exist_ok=True)
    for name, trace in loads.items():
        path = RESULTS / f"{given.model}-{given.load}-{name}.json"
        runs = json.loads(path.read_text())["runs"] if path.exists() else {}
        for who in track(given.only, f"{given.load} {name}"):
            runs[who] = served(trace, given.model, CONTENDERS[who])
        kept = {"commit": commit(), "requests": len(trace.requests)}
        kept["runs"] = {who: runs[who] for who in CONTENDERS if who in runs}
        path.write_text(json.dumps(kept, indent=1) + "\n")
    page = PAGE.read_text()
    for table in ("sharegpt", "contexts"):
        page = replace_table(page, table, figures(table))
    PAGE.write_text(page)


def sharegpt(path: str, rate: float, seed: int) -> Trace:
    """First turns of ShareGPT's conversations at Poisson times."""
    spec = f"sharegpt:{path}?arrivals=poisson&rate={rate:g}&seed={seed}"
    requests = [
        TraceRequest(each.arrival_s, each.prompt_tokens, each.output_tokens)
        for each in open_trace(spec).requests
        if each.turn == 0
        and each.prompt_tokens <= LONGEST_PROMPT
        and each.prompt_tokens + each.output_tokens <= LONGEST
    ]
    # What was left out leaves the times of fewer requests.
    whole = len(requests) / (requests[-1].arrival_s * rate)
    requests = [replace(each, arrival_s=each.arrival_s * whole) for each in requests]
    return _named("sharegpt", [each for each in requests if each.arrival_s <= SECONDS])


def fixed(prompt: int, seed: int) -> Trace:
    """A hundred requests of one length, one per second at Poisson times."""
    times = np.cumsum(np.random.default_rng(seed).exponential(1.0, 100)).tolist()
    return _named("fixed", [TraceRequest(time, prompt, ANSWER) for time in times])


def _named(name: str, requests: Sequence[TraceRequest]) -> Trace:
    named = tuple(replace(each, qos_class=NAMED.name) for each in requests)
    return Trace(name, named, Accounting(len(named), len(named)))


def served(trace: Trace, model: str, contender: Contender, burst: int = 0) -> dict[str, float]:
    """The figures of one run; burst: of warm-up, as measured servers have it."""
    profile = load_profile(MODELS[model], model)
    done = simulate(
        trace,
        profile,
        _options(profile),
        policy=contender.policy,
        config=contender.config,
        classes=CLASSES,
        warm_up_burst=burst,
    )
    return {**measured(done.run), "preempted": done.preempted + done.retracted}


def _options(profile: DeviceProfile) -> EngineOptions:
    return EngineOptions(
        max_total_tokens=profile.kv_pool_tokens,
        host_tokens=HOST * profile.kv_pool_tokens,
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        page_size=16,
    )


def measured(run: Run) -> dict[str, float]:
    """TTFT, TPOT, the shares of requests that miss their objectives, and throughput."""
    sent = run.requests["scheduled_s"].to_numpy()
    owner, times = (run.tokens[name].to_numpy() for name in ("request", "time_s"))
    first = np.searchsorted(owner, np.arange(len(sent)))
    last = np.searchsorted(owner, np.arange(len(sent)), side="right") - 1
    ttft = times[first] - sent
    tpot = (times[last] - times[first]) / np.maximum(last - first, 1)
    late, slow = ttft > TTFT_SLO, tpot > TPOT_SLO
    return {
        "ttft mean": float(ttft.mean()),
        "ttft p99": float(np.percentile(ttft, 99)),
        "tpot mean": float(tpot.mean()),
        "tpot p99": float(np.percentile(tpot, 99)),
        "late": float(late.mean()),
        "slow": float(slow.mean()),
        "violations": float((late | slow).mean()),
        "tokens": len(times) / float(times.max() - sent.min()),
        "requests": len(sent) / float(times.max() - sent.min()),
    }


def figures(load: str) -> str:
    """The table of all results of such loads."""
    first = "requests/s" if load == "sharegpt" else "context"
    lines = [
        f"| model | {first} | admission | TTFT, mean, s | P99, s | TPOT, mean, ms | P99, ms "
        "| TTFT missed | TPOT missed | either | tokens/s | requests/s | preempted | commit |",
        "| --- | ---: | --- |" + " ---: |" * 10 + " --- |",
    ]
    paths = [path for model in MODELS for path in RESULTS.glob(f"{model}-{load}-*.json")]
    order = list(MODELS)

    def place(path: Path) -> tuple[int, float]:
        model, _, value = path.stem.partition(f"-{load}-")
        return order.index(model), float(value)

    for path in sorted(paths, key=place):
        model, _, value = path.stem.partition(f"-{load}-")
        kept = json.loads(path.read_text())
        base = next(iter(kept["runs"].values()))
        for who, run in kept["runs"].items():
            cells = [model, value, who]
            for key in ("ttft mean", "ttft p99"):
                cells.append(f"{run[key]:.2f} ({base[key] / run[key]:.1f}x)")
            cells += [f"{1e3 * run[key]:.0f}" for key in ("tpot mean", "tpot p99")]
            cells += [f"{run[key]:.1%}" for key in ("late", "slow", "violations")]
            cells.append(f"{run['tokens']:.0f} ({run['tokens'] / base['tokens'] - 1:+.1%})")
            cells += [f"{run['requests']:.2f}", f"{run['preempted']:,.0f}", kept["commit"]]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
