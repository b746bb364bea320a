"""Short prefixes restored by layers, by tokens, or from one source: `python .../short_prefixes.py`.

Real SGLang on an emulated device in virtual time, so other work on the machine does not show. Each
contender is a server; a prompt is computed once, written to the storage and flushed from device and
host, and then asked for again at each rate of the link, one request at a time. What is measured is
the last of `--prompts`: the ones before teach the server the link's rate. Writes results, and a
table of README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "restoration"))

from storing_server import storing
from table import replace_table

ROOT = Path(__file__).resolve().parents[3]
PAGE = Path(__file__).with_name("README.md")
RESULTS = ROOT / "benchmarks" / "results" / "restoration_layers"
CONTENDERS = ("wait_complete", "restore", "restore, layers")
"""Loaded; by tokens, as with HiCache's default layout; by layers where that is sooner."""
CHUNK, SUFFIX = 8192, 64
COMPUTED = "computed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="h200")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--prefix", type=int, nargs="+", default=[512, 1024, 2048, 4096])
    parser.add_argument("--gbps", type=float, nargs="+", default=[10, 20, 40, 80])
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--contender", action="append", choices=CONTENDERS, help="default: all")
    args = parser.parse_args()
    profile = load_profile(args.device, args.model)
    path = RESULTS / f"{args.device}-{args.model}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for contender in args.contender or CONTENDERS:
        found[contender] = measure(profile, contender, args)
        RESULTS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        PAGE.write_text(replace_table(PAGE.read_text(), "layer-wise", "\n".join(rows())))


def measure(profile: DeviceProfile, contender: str, args: argparse.Namespace) -> dict[str, Any]:
    """TTFT in emulated seconds and tokens that SGLang counts as stored, by prefix and by rate."""
    rng = random.Random(3)
    longest = max(args.prefix) + SUFFIX
    said: dict[str, Any] = {}
    with storing(
        profile, contender, chunk=CHUNK, pool=3 * longest // 64 * 64, longest=2 * longest
    ) as server:
        for prefix in sorted(args.prefix, reverse=True):  # long prompts teach what short ones cost
            prompts = [
                [rng.randrange(1000, 30000) for _ in range(prefix + SUFFIX)]
                for _ in range(args.prompts)
            ]
            asked = [server.ask([prompt])[0] for prompt in prompts]
            here = said[str(prefix)] = {COMPUTED: asked[-1]}
            for gbps in args.gbps:
                server.link(gbps)
                asked = [server.ask([prompt])[0] for prompt in prompts]
                here[f"{gbps:g}"] = asked[-1]
                print(f"{contender}: {prefix} tokens, {gbps:g} Gbit/s: {asked[-1]}", flush=True)
    return said


def rows() -> list[str]:
    """The table, of all results."""
    head = ("device, model", "tokens", "Gbit/s", COMPUTED, "loaded", "by tokens", "by layers")
    lines = [
        "| " + " | ".join((*head, "best other / by layers")) + " |",
        "| --- | " + " | ".join(["---:"] * len(head)) + " |",
    ]
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text())
        if not all(name in found for name in CONTENDERS):
            continue
        for prefix, by_rate in found["restore"].items():
            computed = by_rate[COMPUTED][0]
            for rate in by_rate:
                if rate == COMPUTED:
                    continue
                loaded, tokens, layers = (found[name][prefix][rate][0] for name in CONTENDERS)
                best = min(computed, loaded, tokens) / layers
                cells = [f"{1e3 * each:.1f}" for each in (computed, loaded, tokens, layers)]
                lines.append(
                    f"| {path.stem} | {int(prefix):,} | {rate} | "
                    + " | ".join(cells)
                    + f" | {best:.2f}x |"
                )
    return lines


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
