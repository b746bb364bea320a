"""CPU time of the scheduler's thread per pass on an emulated H200: SGLang's, ours, write-ahead.

    python benchmarks/scheduler_pass.py [--streams 400] [--kv-tokens 160000] [--seconds 90]

Real SGLang on the emulated device, `--scheduler tokenflow`, one burst of streams of which about
200 fit into the memory, so that they are written ahead, preempted and resumed all the time. A pass
is one turn of SGLang's loop. Ours is everything in it that this package adds; writing ahead is a
part of it. SGLang's is the rest, without launching the step, which the emulator makes dearer
(the whole is printed, too). It is CPU time, so other work on the machine hardly changes it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "burst"))

from devices import device_profile
from suite import CONTENDERS, SERVER

from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest

TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
PERCENTILES = (50.0, 99.0, 99.9, 100.0)


def burst(streams: int) -> Trace:
    """Readers at 10 to 20 tokens/s, all at once."""
    rng = random.Random(7)
    requests = tuple(
        TraceRequest(
            0.0, rng.randrange(200, 800), rng.randrange(500, 1500), rng.choice((10.0, 20.0))
        )
        for _ in range(streams)
    )
    return Trace("burst", requests, Accounting(streams, streams))


async def load(url: str, streams: int, seconds: float) -> None:
    """Keep the server busy for so long."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, stop.set)
    await replay(burst(streams), await find_target(url), ReplayOptions(), stop=stop)


def show(name: str, seconds: np.ndarray) -> None:
    """One row, in milliseconds."""
    figures = [seconds.mean(), *np.percentile(seconds, PERCENTILES)]
    print(f"{name:<36}" + "".join(f"{1e3 * figure:>9.2f}" for figure in figures))


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--kv-tokens", type=int, default=160_000)
    parser.add_argument("--seconds", type=float, default=90.0, help="of load, on the wall clock")
    parser.add_argument("--dilation", type=float, default=4.0)
    parser.add_argument("sglang", nargs="*", help="after --: more of SGLang's options")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        profile, record = Path(scratch) / "h200.json", Path(scratch) / "passes.json"
        device_profile("h200").save(profile)
        launcher = [TOKENFLOW, "serve-emulated", "--profile", str(profile)]
        launcher += ["--time-dilation", str(args.dilation), "--"]
        options = ["--max-total-tokens", str(args.kv_tokens), *SERVER, *CONTENDERS["tokenflow"]]
        options += ["--tokenflow-policy", "pass_recorder:Recorded", "--enable-metrics"]
        folder = str(Path(__file__).resolve().parent)
        paths = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        with SglangServer(
            None,
            [*options, *args.sglang],
            launcher=launcher,
            log_path=Path("scheduler-pass.log"),
            env={"PYTHONPATH": paths, "PASS_RECORD": str(record)},
        ) as server:
            asyncio.run(load(server.url, args.streams, args.seconds))
        whole, ours, writing, launch, running = np.array(json.loads(record.read_text())).T
    print(f"{len(whole)} passes, {running.mean():.0f} streams running; milliseconds of CPU time")
    print(f"{'':<36}" + "".join(f"{head:>9}" for head in ("mean", "P50", "P99", "P99.9", "max")))
    rest = whole - ours - launch
    show("SGLang, launching its step", whole - ours)
    show("SGLang, without launching", rest)
    show("tokenflow", ours)
    show("  of it, writing ahead", writing)
    show("  of it, all else", ours - writing)
    share = np.percentile(writing, 99) / rest.mean()
    print(f"P99 of writing ahead over SGLang's mean pass without launching: {share:.2f}")


if __name__ == "__main__":
    main()
