"""TTFT of a prompt whose prefix lies in HiCache's storage, on an emulated device.

    python benchmarks/restoration/live.py
    python benchmarks/restoration/live.py --device l40s --prefix 8192 --chunk 2048 --gbps 10

Real SGLang in virtual time, so other work on the machine does not show. For each contender a server
is started; each prompt is computed once, written to the storage and flushed from device and host,
and then asked for again at each rate of the link, one request at a time. What is measured at a rate
is the last of `--prompts`: the ones before teach the server the link's rate. The figures go to
benchmarks/results/restoration/, and from there into the table of README.md beside this file.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from pathlib import Path
from typing import Any

from storing_server import CONTENDERS, PAGE_TOKENS, storing

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.restoration import best_split, in_chunks

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "restoration"
PAGE = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- live: begin -->", "<!-- live: end -->"
COMPUTE = "computed"
SUFFIX = 64


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="h200")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--prefix", type=int, default=32768, help="tokens in storage")
    parser.add_argument("--chunk", type=int, default=4096, help="tokens of a prefill step")
    parser.add_argument("--gbps", type=float, nargs="+", default=[10, 20, 30, 40, 80])
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--contender", action="append", choices=CONTENDERS, help="default: all")
    args = parser.parse_args()
    profile = load_profile(args.device, args.model)
    name = f"{args.device}-{args.model}-{args.prefix}"
    path = RESULTS / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for contender in args.contender or CONTENDERS:
        print(f"{name}: {contender}", flush=True)
        found[contender] = measure(profile, contender, args)
        found["best split"] = {f"{gbps:g}": best(profile, gbps, args) for gbps in args.gbps}
        RESULTS.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1) + "\n")
        write_page()


def measure(profile: DeviceProfile, contender: str, args: argparse.Namespace) -> dict[str, Any]:
    """TTFT in emulated seconds by rate, and of computing."""
    rng = random.Random(3)
    prompts = [
        [rng.randrange(1000, 30000) for _ in range(args.prefix + SUFFIX)]
        for _ in range(args.prompts)
    ]
    with storing(
        profile, contender, chunk=args.chunk, pool=3 * args.prefix, longest=2 * args.prefix
    ) as server:
        said: dict[str, Any] = {COMPUTE: [server.ask([prompt])[0][0] for prompt in prompts][-1]}
        for gbps in args.gbps:
            server.link(gbps)
            for prompt in prompts:
                ttft, stored = server.ask([prompt])[0]
                print(f"  {gbps:g} Gbit/s: {ttft:.3f} s, {stored} tokens fetched", flush=True)
            said[f"{gbps:g}"] = ttft
    return said


def best(profile: DeviceProfile, gbps: float, args: argparse.Namespace) -> float:
    """The best split of the prefix by the profile, and the end of the prompt behind it."""

    def step(tokens: int, prefix: int) -> float:
        return profile.prefill_seconds(tokens, tokens * (prefix + tokens / 2))

    rate = gbps * 1e9 / 8 / profile.kv_bytes_per_token
    split = best_split(
        0,
        args.prefix,
        compute=in_chunks(step, args.chunk),
        fetch=lambda tokens: tokens / rate,
        page=PAGE_TOKENS,
    )
    return split.seconds + step(SUFFIX, args.prefix)


def write_page() -> None:
    """The table of README.md, from all results."""
    lines: list[str] = []
    for path in sorted(RESULTS.glob("*.json")):
        found = json.loads(path.read_text())
        rates = sorted({rate for each in found.values() for rate in each} - {COMPUTE}, key=float)
        lines += ["", f"## {path.stem}", "", "| Gbit/s | computed | best split | "]
        names = [name for name in CONTENDERS if name in found]
        lines[-1] += " | ".join(names) + " |"
        lines.append("| --- " * (len(names) + 3) + "|")
        computed = found[names[0]][COMPUTE]
        for rate in rates:
            cells = [f"{found[name][rate]:.3f}" if rate in found[name] else "" for name in names]
            lines.append(
                f"| {rate} | {computed:.3f} | {found['best split'].get(rate, 0.0):.3f} | "
                + " | ".join(cells)
                + " |"
            )
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(head + BEGIN + "\n".join(["", *lines, "", ""]) + END + tail)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    main()
