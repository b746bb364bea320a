"""Capacity on three devices under three mixes: tokenflow, stock SGLang, and its simulated rivals.

    python benchmarks/capacity/search.py --azure AzureLLMInferenceTrace_conv.csv

What `tokenflow capacity` searches, for each device and mix: the rate at which 99 % of the streams
keep `ttft<=2,stall<=0.5`. Needs no server. Each search is kept under benchmarks/results/capacity
as JSON with every rate that was tried; one that is there is not repeated unless --again. The tables
go into README.md beside this file, a picture for each mix and device beside the searches.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deployments"))

from deployed import TRAFFIC

from tokenflow_sgl.choices import Contender
from tokenflow_sgl.cli.capacity_output import object_of
from tokenflow_sgl.cli.chosen_engine import SimulatedServer
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.sim.study.capacity_plot import plot_capacity
from tokenflow_sgl.lab.sim.study.capacity_search import CapacitySetup, Carried, Tried, capacity
from tokenflow_sgl.lab.sim.study.spread import Spread, on_cores
from tokenflow_sgl.lab.traces import Trace, open_trace
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.transform import with_rates, with_slos

PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- capacity -->\n\n", "\n<!-- /capacity -->"
RESULTS = Path(__file__).resolve().parents[1] / "results" / "capacity"
GOAL, SHARE = "ttft<=2,stall<=0.5", 0.99
READ, TTFT = 20.0, 2.0
KNOWN = f"readers={READ:g}&ttft_slo={TTFT:g}"
"""What every scheduler is told of a request beside its prompt and limit: the goal, as QoServe's
deadlines need it."""
MODEL, HOST_RATIO = "llama3-8b", 8.0
POLICIES = (
    Contender.fcfs,
    Contender.tokenflow,
    Contender.fcfs_hicache,
    Contender.hrrn,
    Contender.shortest_prefill,
    Contender.chunked,
    Contender.prefill_interval,
    Contender.qoserve,
    Contender.andes,
)
OWN = POLICIES[:1] + POLICIES[2:7]
"""Of these, what SGLang has by itself: its defaults first, then other settings."""
TITLES = {
    "prefill": "Prefill is the limit: Azure conversations, prompts of 1,000 tokens, answers of 200",
    "memory": "Memory is the limit: Poisson arrivals, prompts of 512 tokens, answers of 2,048",
    "chat": f"Sessions: {TRAFFIC['chat'].title}",
}


CHAT = 0.4, 400.0
"""Conversations per second, and for how long they come."""
KV_TOKENS = {"rtx4090": 35_000, "a100": 200_000, "h200": 200_000}
"""On each device, as in the paper's workloads; the A100 gets the H200's."""


def trace_of(mix: str, azure: Path) -> Trace:
    """The trace of a mix. Poisson arrivals last as long as it takes to read three answers."""
    if mix == "prefill":
        return open_trace(f"azure:{azure}?start=0&duration=100&{KNOWN}")
    if mix == "memory":
        return open_trace(f"4090-c?duration=320&share=0.5&{KNOWN}")
    made = TRAFFIC["chat"].trace("chat", *CHAT)
    return with_slos(with_rates(made, RateMix((READ,)), seed=0), TTFT, None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--azure", type=Path, metavar="FILE", required=True, help="conversations")
    parser.add_argument("--again", action="store_true", help="repeat the searches that are kept")
    parser.add_argument(
        "--policy", action="append", choices=POLICIES, help="to search; default: all"
    )
    parser.add_argument("--workers", type=int, default=1, help="processes; default: 1")
    given = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with on_cores(given.workers) as spread:
        for policy, mix, device in itertools.product(given.policy or POLICIES, TITLES, KV_TOKENS):
            if given.again or not path(mix, device, policy).exists():
                search(mix, device, policy, given.azure, spread)
    for mix, device in itertools.product(TITLES, KV_TOKENS):
        title = f"{TITLES[mix].partition(':')[0]}, {device}: {SHARE:.0%} with {GOAL}"
        found = [each for policy in POLICIES if (each := kept(mix, device, policy)) is not None]
        plot_capacity(found, SHARE, RESULTS / f"{mix}-{device}.png", title)
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(before + BEGIN + tables() + END + after, encoding="utf-8")


def path(mix: str, device: str, policy: str) -> Path:
    """Where a search is kept."""
    return RESULTS / f"{mix}-{device}-{policy}.json"


def search(mix: str, device: str, policy: str, azure: Path, spread: Spread) -> None:
    """Search one policy's rate on one device, and keep what was found."""
    profile, options = SimulatedServer(kv_tokens=KV_TOKENS[device], hicache_ratio=HOST_RATIO).open(
        device, MODEL
    )
    setup = CapacitySetup((trace_of(mix, azure),), profile, options, parse_goal(GOAL), SHARE)
    began = time.monotonic()
    found = capacity(setup, [policy], spread=spread)
    text = json.dumps(object_of(setup, found), indent=2)
    path(mix, device, policy).write_text(text + "\n", encoding="utf-8")
    seconds = time.monotonic() - began
    print(f"{mix} {device} {policy}: {found[0].rate:.3g} streams/s, {seconds:.0f} s", flush=True)


def kept(mix: str, device: str, policy: str) -> Carried | None:
    """What a search has found; None: it has not been done."""
    if not path(mix, device, policy).exists():
        return None
    whole = json.loads(path(mix, device, policy).read_text(encoding="utf-8"))
    [found] = whole["policies"]
    tried = tuple(
        Tried(math.nan, each["streams_per_second"], each["share"]) for each in found["tried"]
    )
    best = next((each for each in tried if each.rate == found["streams_per_second"]), None)
    return Carried(policy, best, tried, found["monotone"], found["unbounded"])


def tables() -> str:
    """One table for each mix: a row for each policy, two columns for each device."""
    return "\n".join(f"**{title}.**\n\n{table(mix)}" for mix, title in TITLES.items())


def table(mix: str) -> str:
    """Streams per second of each policy on each device, and how many times stock's that is."""
    heads = [head for device in KV_TOKENS for head in (f"{device}, streams/s", "of stock's")]
    lines = ["| policy | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for policy in POLICIES:
        cells = [f"`{policy}`"]
        for device in KV_TOKENS:
            found, stock = kept(mix, device, policy), kept(mix, device, Contender.fcfs)
            if found is None or stock is None:
                cells += ["not run", ""]
                continue
            doubt = "" if found.monotone else " (*)"
            cells.append(f"{found.rate:.3g}{doubt}" if found.rate else "none")
            cells.append(f"{found.rate / stock.rate:.2f}" if stock.rate else "-")
        lines.append("| " + " | ".join(cells) + " |")
    best = ["**best of SGLang's own settings**"]
    for device in KV_TOKENS:
        found = {each: kept(mix, device, each) for each in OWN}
        rates = {each: one.rate for each, one in found.items() if one is not None}
        most = max(rates, key=lambda each: rates[each])
        best += [f"`{most}`", f"{rates[most] / rates[OWN[0]]:.2f}"]
    lines.append("| " + " | ".join(best) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
