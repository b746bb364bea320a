"""Conversations and agents whose KV leaves device and host between turns, on real SGLang.

    python benchmarks/restoration/traces.py /work/traces
    python benchmarks/restoration/traces.py /work/traces --load agents --gbps 10
    python benchmarks/restoration/traces.py /work/traces --gbps 10 --draws 10

The folder has the files of `LOADS` (docs/traces.md says where they come from). Each contender of
`storing_server` gets a server of its own in virtual time, which serves one trace after the other,
and `tokenflow replay` sends each turn when the answer before it has ended. The simulator serves the
same requests beside it. Figures go to
benchmarks/results/restoration_traces/, and from there into README.md's table beside this file. With
--draws the simulator alone serves so many draws of each load, for another table of the page.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from storing_server import CONTENDERS, PAGE_TOKENS, storing

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Trace, open_trace
from tokenflow_sgl.lab.traces.transform import fit_context, limit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from run import commit
from table import replace_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "restoration_traces"
PAGE = Path(__file__).with_name("README.md")
DEVICE, MODEL = "l40s", "llama3-8b"
ANSWER = 16
"""Tokens of an answer at most. Answers are cut, for they take nearly all steps of a run; what the
next turn has of a longer one is new to the server."""
MEMORY, HOST = 60_000, 1.0
"""Tokens of KV on the device, and the host's over these."""
SYSTEMS = ("restore", "best_effort", "wait_complete", "timeout")
THINK = 60.0
"""Seconds between an answer and the next turn, in the mean."""


@dataclass(frozen=True)
class Load:
    """A part of a trace.

    Attributes:
        spec: How it is read; {folder} stands for that of the files.
        requests: So many at first, sessions whole.
        longest: Tokens of prompt and answer at most; a session ends before what is longer.
        drawn: Think times are drawn, exponentially; else they are as in the trace.
    """

    spec: str
    requests: int
    longest: int
    drawn: bool = False


SHAREGPT = (
    "sharegpt:{folder}/sharegpt_lengths/sharegpt_8k_filtered_stats_llama2_tokenizer.csv"
    f"?arrivals=poisson&rate=2&think={THINK:g}&readers=20"
)
LOADS: Mapping[str, Load] = {
    "conversations": Load(SHAREGPT, 400, 16_000, drawn=True),
    # Turns whose answers end in the same step are followed by turns that come at the same time.
    "conversations in step": Load(SHAREGPT, 400, 16_000),
    "agents": Load(
        "agent:{folder}/swe_agent/mini_swe_agent_gemini3pro_calls.csv"
        "?think=gap&arrivals=poisson&rate=0.04&readers=20",
        200,
        20_000,
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--load", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--gbps", type=float, nargs="+", default=[10, 40])
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, default=list(SYSTEMS))
    parser.add_argument("--draws", type=int, help="simulate so many of each load, and no more")
    args = parser.parse_args()
    profile = load_profile(DEVICE, MODEL)
    if args.draws:
        ratios = {
            (name, gbps): drawn(LOADS[name], args.folder, profile, gbps, args.draws)
            for name in args.load
            for gbps in args.gbps
        }
        PAGE.write_text(replace_table(PAGE.read_text(), "draws", draws_table(ratios, args.draws)))
        return
    traces = {name: part(LOADS[name], args.folder) for name in args.load}
    for contender in args.contender:
        runs = ((gbps, name) for gbps in args.gbps for name in args.load)
        for (gbps, name), live in measure(profile, contender, traces, runs):
            simulated = figures(beside(traces[name], profile, gbps, contender))
            print(
                f"{name}, {gbps:g} Gbit/s, {contender}: {live}; simulated: {simulated}", flush=True
            )
            keep(f"{name}, {gbps:g}", contender, live, simulated)
            write_page()


def part(load: Load, folder: Path, seed: int = 0) -> Trace:
    """The load's requests, with short answers."""
    whole = open_trace(load.spec.format(folder=folder) + f"&seed={seed}")
    chosen = limit(fit_context(whole, load.longest), load.requests)
    random = np.random.default_rng(seed)
    requests = []
    for each in chosen.requests:
        think = random.exponential(THINK) if load.drawn and each.turn else each.think_s
        short = min(each.output_tokens, ANSWER)
        requests.append(replace(each, output_tokens=short, think_s=round(think, 3)))
    return replace(chosen, requests=tuple(requests))


def drawn(
    load: Load, folder: Path, profile: DeviceProfile, gbps: float, draws: int
) -> dict[str, list[dict[str, float]]]:
    """Of so many draws of a load, what the simulator says of each contender."""
    traces = [part(load, folder, seed) for seed in range(draws)]
    return {
        contender: [figures(beside(trace, profile, gbps, contender)) for trace in traces]
        for contender in SYSTEMS
    }


def measure(
    profile: DeviceProfile,
    contender: str,
    traces: Mapping[str, Trace],
    runs: Iterable[tuple[float, str]],
) -> Iterator[tuple[tuple[float, str], dict[str, float]]]:
    """Each link and trace on one server, one after the other, with prompts of its own."""
    with storing(
        profile,
        contender,
        chunk=chunked_prefill_size(profile.device_memory),
        pool=MEMORY,
        longest=2 * max(LOADS[name].longest for name in traces),
        host=HOST,
        options=("--skip-tokenizer-init", "--incremental-streaming-output"),
    ) as server:
        for seed, (gbps, name) in enumerate(runs):
            server.link(gbps)
            run = asyncio.run(send(server.url, traces[name], seed))
            if run.info.invalid:
                raise SystemExit("; ".join(run.info.invalid))
            yield (gbps, name), figures(run)
            server.forget()


async def send(url: str, trace: Trace, seed: int) -> Run:
    """Each turn when the answer before it has ended."""
    return await replay(trace, await find_target(url), ReplayOptions(seed=seed, send_rates=False))


def beside(trace: Trace, profile: DeviceProfile, gbps: float, contender: str) -> Run:
    """The same in the simulator."""
    policy, ours = CONTENDERS[contender]
    options = EngineOptions(
        max_total_tokens=MEMORY,
        host_tokens=int(HOST * MEMORY),
        page_size=PAGE_TOKENS,
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
        storage_gbps=gbps,
        hicache_storage_prefetch_policy=policy,
        restore="auto" if ours else "off",
    )
    scheduler = "tokenflow" if "tokenflow" in ours else "fcfs-hicache"
    return simulate(trace, profile, options, policy=scheduler).run


def figures(run: Run) -> dict[str, float]:
    """TTFT in seconds, over all requests."""
    owner, times = run.tokens["request"].to_numpy(), run.tokens["time_s"].to_numpy()
    answered, begins = np.unique(owner, return_index=True)
    waited = times[begins] - run.requests["sent_s"].to_numpy()[answered]
    found = {"requests": len(run.requests), "answered": len(answered), "mean": waited.mean()}
    found |= {f"p{share}": np.quantile(waited, share / 100) for share in (50, 99)}
    return {name: round(float(value), 4) for name, value in found.items()}


def keep(name: str, contender: str, live: Any, simulated: Any) -> None:
    """Add it to the results."""
    path = RESULTS / f"{DEVICE}-{MODEL}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    figures = {"commit": commit(), "live": live, "simulated": simulated}
    found.setdefault(name, {})[contender] = figures
    RESULTS.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def write_page() -> None:
    """The table of README.md, from all results."""
    found = json.loads((RESULTS / f"{DEVICE}-{MODEL}.json").read_text())
    lines = ["| trace | Gbit/s | contender | mean TTFT, s | P50 | P99 | simulated: mean | P99 |"]
    lines.append("| --- | ---: | --- |" + " ---: |" * 5)
    for name, runs in found.items():
        trace, gbps = name.rsplit(", ", 1)
        for contender, each in sorted(runs.items(), key=lambda run: [*CONTENDERS].index(run[0])):
            live, simulated = each["live"], each["simulated"]
            cells = [live["mean"], live["p50"], live["p99"], simulated["mean"], simulated["p99"]]
            shown = " | ".join(f"{seconds:.3f}" for seconds in cells)
            lines.append(f"| {trace} | {gbps} | {contender} | {shown} |")
    PAGE.write_text(replace_table(PAGE.read_text(), "traces", "\n".join(lines) + "\n"))


def draws_table(
    found: Mapping[tuple[str, float], Mapping[str, list[dict[str, float]]]], draws: int
) -> str:
    """Each contender's TTFT, and what it is over that of `wait_complete`, draw by draw."""
    lines = [
        "| trace | Gbit/s | contender | mean TTFT, s | P99 | mean, over wait_complete's | P99 |"
    ]
    lines.append("| --- | ---: | --- |" + " ---: |" * 4)
    for (name, gbps), contenders in found.items():
        for contender, runs in contenders.items():
            cells = [f"{np.mean([run[key] for run in runs]):.3f}" for key in ("mean", "p99")]
            for key in ("mean", "p99"):
                base = [run[key] for run in contenders["wait_complete"]]
                over = np.array([run[key] for run in runs]) / base
                cells.append(
                    f"{np.exp(np.log(over).mean()):.2f}x ({over.min():.2f} to {over.max():.2f})"
                )
            lines.append(f"| {name} | {gbps:g} | {contender} | " + " | ".join(cells) + " |")
    text = (
        f"\nSimulated with {commit()}; {draws} draws, geometric means and ranges of the ratios.\n"
    )
    return "\n".join(lines) + "\n" + text


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
