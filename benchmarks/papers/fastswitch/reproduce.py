"""FastSwitch's evaluation (arXiv 2411.18424, section 5), simulated: our factors beside the paper's.

    python benchmarks/papers/fastswitch/reproduce.py Markov-0.04
    python benchmarks/papers/fastswitch/reproduce.py Random-0.04 Markov-0.02 Random-0.02

    python benchmarks/papers/fastswitch/reproduce.py Markov-0.04 --sharegpt LENGTHS.csv --rate 0.4
    python benchmarks/papers/fastswitch/reproduce.py Markov-0.02 --sharegpt LENGTHS.csv --on a100

Each load is minutes on one core. Without a file of conversations (docs/traces.md) the load is the
burst `4090-b`; with it conversations begin at a rate per second, for ten minutes. Results are kept
in benchmarks/results/fastswitch/, and the table of README.md beside this file is made of all that
are there. The baseline swaps as the paper's: KV blocks of 16 tokens, each copied by a call for K
and one for V in each layer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import track

from tokenflow_sgl.lab.profiles import PieceCosts, load_profile
from tokenflow_sgl.lab.profiles.pieces import ESTIMATED
from tokenflow_sgl.policy.baselines.priorities import ITERATION_SECONDS

# Both folders have a module `simulated`; the one of context switches is meant, so it comes last.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "context_switch"))

from run import ROOT, commit
from simulated import FREQUENCIES, LINKS, PATTERNS, WORKLOAD, Job, figures_of
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "fastswitch"
BLOCK = 16
"""Tokens of a KV block, vLLM's default."""
GROUP = 20
"""Blocks that the paper's block groups have on average (section 3.1, an A10)."""
CALL = 10e-6
"""Seconds of the CPU per copy call of the baseline: "exceeds its 10 us execution" (section 2.2)."""

VLLM = replace(ESTIMATED, call=CALL)
GROUPS = PieceCosts(call=VLLM.call / GROUP, set_up=VLLM.set_up / GROUP)
"""Per block, where a group of blocks is one piece."""
BY_CALL = {"hicache_io_backend": "direct", "hicache_mem_layout": "layer_first"}
IN_TURNS = {**BY_CALL, "hicache_write_policy": "write_back", "load_evict_overlap": False}
"""Swaps when memory is needed, one way at a time."""

STEPS: Mapping[str, tuple[dict[str, Any], PieceCosts, bool]] = {
    "vLLM's swapping": ({**IN_TURNS, "keep_copies": False}, VLLM, False),
    "with block groups": ({**IN_TURNS, "keep_copies": False}, GROUPS, False),
    "and copies that are kept": (IN_TURNS, GROUPS, False),
    "and overlapped with compute": (BY_CALL, GROUPS, True),
    "tokenflow's, HiCache's kernel": ({}, ESTIMATED, True),
}
"""SGLang's settings, what pieces cost, and whether KV is written and loaded ahead."""
LOADS = {
    f"{pattern}-{frequency:g}": (pattern, frequency)
    for frequency, pattern in itertools.product(reversed(FREQUENCIES), PATTERNS)
}


@dataclass(frozen=True, slots=True)
class Machine:
    """One of the paper's GPUs with its model.

    Attributes:
        title: In the table.
        device, model: Of the profile.
        kv_tokens: What vLLM's 90 % of the memory leave for KV beside the weights.
        iteration: Seconds of a decode step of 30,000 KV tokens.
    """

    title: str
    device: str
    model: str
    kv_tokens: int
    iteration: float

    @property
    def host_tokens(self) -> int:
        """KV tokens of the swap space."""
        return int(SWAP_SPACE / load_profile(self.device, self.model).kv_bytes_per_token)


SWAP_SPACE = 60e9
"""Bytes of host memory per GPU (section 4)."""
MACHINES = {
    "a10": Machine("Llama-8B on an A10", "a10", "llama3-8b", 40_000, 0.041),
    "a100": Machine("Qwen-32B on an A100", "a100", "qwen2.5-32b", 45_000, 0.055),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("load", nargs="+", choices=LOADS)
    parser.add_argument("--sharegpt", metavar="FILE", help="lengths of conversations")
    parser.add_argument("--rate", type=float, default=0.4, help="conversations per second")
    parser.add_argument("--on", choices=MACHINES, help="one of the paper's GPUs")
    given = parser.parse_args()
    trace, suffix = WORKLOAD, ""
    if given.sharegpt:
        trace = f"sharegpt:{given.sharegpt}?arrivals=poisson&rate={given.rate:g}&think=5"
        suffix = f"-sharegpt-{given.rate:g}"
    machine = MACHINES.get(given.on)
    own: dict[str, Any] = {}
    if machine is not None:
        suffix += f"-on-{given.on}"
        own = {name: getattr(machine, name) for name in ("device", "model", "kv_tokens")}
    for load in given.load:
        pattern, frequency = LOADS[load]
        if machine is not None:
            frequency *= ITERATION_SECONDS / machine.iteration
        found = {}
        for name, (settings, pieces, ahead) in track(STEPS.items(), load):
            policy = PATTERNS[pattern](frequency, ahead=ahead)
            if machine is not None:
                settings = {"host_tokens": machine.host_tokens, **settings}
            job = Job(
                LINKS[0],
                policy,
                settings=settings,
                trace=trace,
                page=BLOCK,
                pieces=pieces,
                **own,
            )
            found[name] = figures_of(None, job)
        RESULTS.mkdir(parents=True, exist_ok=True)
        kept = {"commit": commit(), "runs": found}
        (RESULTS / f"{load}{suffix}.json").write_text(json.dumps(kept, indent=1) + "\n")
        PAGE.write_text(replace_table(PAGE.read_text(), "factors", factors()))


def factors() -> str:
    """The table of all results: what each step gains over the baseline."""
    lines = [
        "| priorities | swaps | P95 TTFT | P99 TTFT | P99.9 TTFT | P99.9 TBT | tokens/s "
        "| time of a switch | calls per switch | blocks swapped out per switch | commit |",
        "| --- | --- |" + " ---: |" * 8 + " --- |",
    ]
    paths = [path for load in LOADS for path in sorted(RESULTS.glob(f"{load}*.json"))]
    for path in paths:
        load, _, on = path.stem.partition("-on-")
        load, _, rate = load.partition("-sharegpt-")
        load = f"{load}, {rate} conversations/s" if rate else f"{load}, burst"
        if on:
            load += f", {MACHINES[on].title}"
        kept = json.loads(path.read_text())
        base = kept["runs"]["vLLM's swapping"]
        for name, run in kept["runs"].items():
            cells = [load, name]
            cells += [
                f"{run[key]:.1f} s ({base[key] / run[key]:.2f}x)"
                for key in ("ttft p95", "ttft p99", "ttft p999", "tbt p999")
            ]
            took, first = (1e3 * one["copying"] / one["switches"] for one in (run, base))
            blocks, least = (one["stored"] / one["switches"] for one in (run, base))
            calls = run["calls"] / run["switches"]
            if STEPS[name][1] is GROUPS:
                calls /= GROUP
            cells += [
                f"{run['tokens']:.0f} ({run['tokens'] / base['tokens']:.2f}x)",
                f"{took:.1f} ms ({first / took:.2f}x)",
                f"{calls:,.0f}",
                f"{blocks / BLOCK:,.0f} ({blocks / least - 1:+.0%})",
                kept["commit"],
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
