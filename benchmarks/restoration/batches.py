"""TTFT of prompts that come at the same time and whose prefixes lie in HiCache's storage.

    python benchmarks/restoration/batches.py
    python benchmarks/restoration/batches.py --device h100 --chunk 8192 --gbps 40 --batch 8

Real SGLang in virtual time, as `live.py`. Prefixes are of the lengths of the planner's evaluation
(benchmarks/papers/cacheflow), so that its arithmetic stands beside. Each batch is asked for until
its link is known; what counts is the last time. Writes the second table of README.md, and into
that of the evaluation how busy the device and the link were meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from statistics import fmean

from storing_server import ALL, CONTENDERS, StoringServer, storing

from tokenflow_sgl.lab.profiles import load_profile

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "burst"))

from table import replace_table

RESULTS = Path(__file__).resolve().parents[1] / "results" / "restoration_batches"
BUSY = RESULTS.with_name("restoration_busy")
PAPER = Path(__file__).resolve().parents[1] / "papers" / "cacheflow" / "README.md"
PAGE = Path(__file__).with_name("README.md")
PREFIXES = (30720, 6144, 16384, 10240, 24576, 8192, 12288, 20480)
SUFFIX = 128
"""Tokens behind each prefix."""
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="l40s")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--chunk", type=int, default=4096, help="tokens of a prefill step")
    parser.add_argument("--gbps", type=float, nargs="+", default=[10])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument(
        "--priorities",
        action="store_true",
        help="the shorter a prefix, the higher its request's priority; SGLang admits by that",
    )
    parser.add_argument("--contender", action="append", choices=CONTENDERS, help="default: all")
    args = parser.parse_args()
    path = RESULTS / f"{name_of(args)}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for contender in args.contender or CONTENDERS:
        print(f"{path.stem}: {contender}", flush=True)
        found.setdefault(contender, {}).update(measure(contender, args))
        RESULTS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        write_page()
    write_busy()


def measure(contender: str, args: argparse.Namespace) -> dict[str, list[float]]:
    """TTFT of each request in emulated seconds, by "batch, rate"."""
    profile = load_profile(args.device, args.model)
    rng = random.Random(3)
    longest = max(args.batch)
    prompts = [
        [rng.randrange(1000, 30000) for _ in range(prefix + SUFFIX)]
        for prefix in PREFIXES[:longest]
    ]
    pool = sum(map(len, prompts)) + 16384
    said: dict[str, list[float]] = {}
    by_length = [-len(prompt) for prompt in prompts] if args.priorities else None
    with storing(
        profile,
        contender,
        chunk=args.chunk,
        pool=pool,
        longest=max(map(len, prompts)) + 1024,
        options=("--enable-priority-scheduling",) if args.priorities else (),
    ) as server:
        for prompt in prompts:
            server.ask([prompt])
        for batch in args.batch:
            for gbps in args.gbps:
                server.link(gbps)
                for _ in range(ROUNDS):
                    before = server.busy_seconds()
                    times = [ttft for ttft, _ in server.ask(prompts[:batch], by_length)]
                    print(f"  {batch} at {gbps:g} Gbit/s: {fmean(times):.3f} s", flush=True)
                said[f"{batch}, {gbps:g}"] = times
                if CONTENDERS[contender][1]:
                    keep_busy(f"{name_of(args)}, {contender}", f"{batch}, {gbps:g}", server, before)
    return said


def name_of(args: argparse.Namespace) -> str:
    """Of a file of results."""
    return f"{args.device}-{args.model}" + ("-priorities" if args.priorities else "")


def keep_busy(name: str, key: str, server: StoringServer, before: dict[str, float]) -> None:
    """Note the shares of the last batch's time in which device and link were busy."""
    after = server.busy_seconds()
    spent = {each: seconds - before.get(each, 0.0) for each, seconds in after.items()}
    path = BUSY / "busy.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    shares = {each: seconds / spent[ALL] for each, seconds in spent.items() if each != ALL}
    found.setdefault(name, {})[key] = {**shares, "seconds": spent[ALL]}
    BUSY.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def write_busy() -> None:
    """The table of how busy device and link were, from all results."""
    path = BUSY / "busy.json"
    lines = ["| setting | Gbit/s | requests | seconds | device | link |"]
    lines.append("| --- |" + " ---: |" * 5)
    found = json.loads(path.read_text()) if path.exists() else {}
    for name, each in sorted(found.items()):
        for key, shares in each.items():
            batch, gbps = key.split(", ")
            cells = f"{shares['seconds']:.2f} | {shares['device']:.0%} | {shares['link']:.0%}"
            lines.append(f"| {name} | {gbps} | {batch} | {cells} |")
    PAPER.write_text(replace_table(PAPER.read_text(), "busy live", "\n".join(lines) + "\n"))


def write_page() -> None:
    """The table of README.md, from all results."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))}
    shown = [name for name in CONTENDERS if any(name in found for found in results.values())]
    lines = [
        "| device | Gbit/s | requests | " + " | ".join(shown) + " | best stock / restore |",
        "| --- " * (4 + len(shown)) + "|",
    ]
    for device, found in results.items():
        keys = {key for each in found.values() for key in each}
        for key in sorted(keys, key=lambda key: [*map(float, key.split(", "))][::-1]):
            batch, gbps = key.split(", ")
            means = {name: fmean(each[key]) for name, each in found.items() if key in each}
            cells = [f"{means[name]:.3f}" if name in means else "" for name in shown]
            stock = [mean for name, mean in means.items() if not CONTENDERS[name][1]]
            gain = f"{min(stock) / means['restore']:.2f}x" if stock and "restore" in means else ""
            lines.append(f"| {device} | {gbps} | {batch} | " + " | ".join([*cells, gain]) + " |")
    PAGE.write_text(replace_table(PAGE.read_text(), "batches", "\n".join(lines) + "\n"))


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
