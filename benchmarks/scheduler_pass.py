"""CPU time of the scheduler's thread per pass on an emulated H200: SGLang's, ours, write-ahead.

    python benchmarks/scheduler_pass.py [--streams 400] [--kv-tokens 160000]
    python benchmarks/scheduler_pass.py --kind decode --against /path/to/other/checkout --pairs 3

Real SGLang on the emulated device, `--scheduler tokenflow`, one burst of streams of which about
200 fit into the memory, so that they are written ahead, preempted and resumed all the time. A pass
is one turn of SGLang's loop. Ours is everything in it that this package adds; writing ahead is a
part of it. SGLang's is the rest, without launching the step, which the emulator makes dearer
(the whole is printed, too). It is CPU time, and the device's time is virtual, so that other work on
the machine changes it little.

With `--against` both versions run in turns, and each pair's ratio is printed. Kinds of servers:
plain, decode (of a disaggregated pair, by SGLang's `fake` transfer), layerwise (KV by layers, for
half as many tokens again as fit the device).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "burst"))

from devices import device_profile
from suite import CONTENDERS, SERVER

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, write_native

TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
HERE = Path(__file__).resolve().parent
KINDS = {
    "plain": (),
    "decode": ("--disaggregation-mode", "decode", "--disaggregation-transfer-backend", "fake"),
    "layerwise": (
        *("--tokenflow-layerwise", "even", "--tokenflow-layerwise-ratio", "1.5"),
        *("--page-size", "16"),
    ),
}
"""SGLang's options of each kind of server."""
PERCENTILES = (50.0, 99.0, 99.9, 100.0)


def burst(streams: int) -> Trace:
    """Readers at 10 to 20 tokens/s, all at once."""
    rng = random.Random(7)
    requests = tuple(
        TraceRequest(
            0.0, rng.randrange(200, 800), rng.randrange(300, 700), rng.choice((10.0, 20.0))
        )
        for _ in range(streams)
    )
    return Trace("burst", requests, Accounting(streams, streams))


def show(name: str, seconds: np.ndarray) -> None:
    """One row, in milliseconds."""
    figures = [seconds.mean(), *np.percentile(seconds, PERCENTILES)]
    print(f"{name:<36}" + "".join(f"{1e3 * figure:>9.2f}" for figure in figures))


def measure(args: argparse.Namespace, checkout: Path | None = None) -> np.ndarray:
    """Seconds per pass: whole, ours, writing, launch; and the streams that ran.

    checkout: Of another version than the installed one.
    """
    with tempfile.TemporaryDirectory() as scratch:
        profile, record = Path(scratch) / "h200.json", Path(scratch) / "passes.json"
        device_profile("h200").save(profile)
        launcher = [TOKENFLOW, "serve-emulated", "--profile", str(profile)]
        launcher += ["--virtual-time", "--"]
        trace = Path(scratch) / "burst.jsonl"
        write_native(trace, burst(args.streams))
        options = ["--max-total-tokens", str(args.kv_tokens), *SERVER]
        hosts = () if args.kind == "layerwise" else CONTENDERS["tokenflow"][2:]
        options += ["--scheduler", "tokenflow", *hosts, *KINDS[args.kind]]
        options += ["--tokenflow-policy", "pass_recorder:Recorded", "--enable-metrics"]
        own = [] if checkout is None else [str(checkout), str(checkout / "emulator" / "src")]
        paths = [str(HERE), *own, *filter(None, [os.environ.get("PYTHONPATH")])]
        with SglangServer(
            None,
            [*options, *args.sglang],
            launcher=launcher,
            log_path=Path("scheduler-pass.log"),
            env={"PYTHONPATH": os.pathsep.join(paths), "PASS_RECORD": str(record)},
        ) as server:
            command = [TOKENFLOW, "replay", str(trace), "--url", server.url]
            command += ["--output", str(Path(scratch) / "run")]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return np.array(json.loads(record.read_text())).T


def table(passes: np.ndarray) -> None:
    """Print the figures of one run."""
    whole, ours, writing, launch, running = passes
    print(f"{len(whole)} passes, {running.mean():.0f} streams running; milliseconds of CPU time")
    print(f"{'':<36}" + "".join(f"{head:>9}" for head in ("mean", "P50", "P99", "P99.9", "max")))
    rest = whole - ours - launch
    show("SGLang, launching its step", whole - ours)
    show("SGLang, without launching", rest)
    show("tokenflow", ours)
    show("  of it, writing ahead", writing)
    show("  of it, all else", ours - writing)
    share = np.percentile(writing, 99) / rest.mean()
    print(
        f"P99 of writing ahead over SGLang's mean pass without launching: {share:.2f}", flush=True
    )


def pairs(args: argparse.Namespace) -> None:
    """Both versions in turns, each first in every second pair."""
    ratios = []
    for number in range(args.pairs):
        order = (None, args.against) if number % 2 else (args.against, None)
        found = {checkout: measure(args, checkout) for checkout in order}
        new, old = found[None], found[args.against]
        means = [(each[1].mean(), (each[0] - each[3]).mean()) for each in (new, old)]
        (ours, whole), (ours_before, whole_before) = means
        ratios.append((ours / ours_before, whole / whole_before))
        print(
            f"{args.kind}, pair {number + 1}: tokenflow {1e3 * ours:.3f} ms, before "
            f"{1e3 * ours_before:.3f} ms ({ratios[-1][0]:.3f}x); all without launching "
            f"{1e3 * whole:.2f} ms, before {1e3 * whole_before:.2f} ms ({ratios[-1][1]:.3f}x); "
            f"{new[4].mean():.0f} and {old[4].mean():.0f} streams running",
            flush=True,
        )
    ours, whole = np.median(np.array(ratios), axis=0)
    print(f"{args.kind}: median of {args.pairs} pairs: tokenflow {ours:.3f}x, all {whole:.3f}x")


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", choices=KINDS, default="plain")
    parser.add_argument("--against", type=Path, help="checkout of another version")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--kv-tokens", type=int, default=160_000)
    parser.add_argument("sglang", nargs="*", help="after --: more of SGLang's options")
    args = parser.parse_args()
    if args.against is None:
        table(measure(args))
    else:
        pairs(args)


if __name__ == "__main__":
    main()
