"""How late the replay client stamps tokens, with many streams at once.

    python benchmarks/replay_client.py [--streams 2000] [--rate 20] [--tokens 400] [--in-step]

A stub server in a process of its own (tests/helpers/replaying/stub.py) streams to
`tokenflow replay`'s client and writes into every chunk when it sent it; both processes read the
same monotonic clock. Printed: tokens lost, how long after its sending each token was stamped, and
the CPU time and memory of the client. `--in-step` sends to all streams at the same moments, as an
engine's decode steps do; otherwise their phases are random.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import resource
import subprocess
import sys
import time
from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenflow_sgl.choices import Api
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.replay.answers import GenerateAnswer
from tokenflow_sgl.lab.replay.endpoints import ENDPOINTS
from tokenflow_sgl.lab.replay.live import Snapshot
from tokenflow_sgl.lab.replay.steady import allow_many_files, new_event_loop
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.traces.request import Accounting, Trace, TraceRequest

STUB = Path(__file__).parents[1] / "tests/helpers/replaying/stub.py"
STAMP = re.compile(rb'"stamp":([0-9.]+)')
OPEN_S = 5.0
"""Streams are opened over so many seconds."""


class StampedAnswer(GenerateAnswer):
    """Keeps the server's stamp of every token."""

    def __init__(self, *, keep: bool = False) -> None:
        super().__init__(keep=keep)
        self.stamps = array("d")

    def take(self, chunk: bytes) -> int:
        """As the real one, and keep the stamp."""
        new = super().take(chunk)
        if new and (found := STAMP.search(chunk)):
            self.stamps.extend([float(found[1])] * new)
        return new


async def measure(url: str, trace: Trace) -> tuple[Run, np.ndarray]:
    """The run, and for every token the seconds from its sending to its stamp."""
    answers: list[StampedAnswer] = []

    def answer(*, keep: bool) -> StampedAnswer:
        answers.append(StampedAnswer(keep=keep))
        return answers[-1]

    zeros = []

    def observe(snapshot: Snapshot, wall_s: float) -> None:
        zeros.append(time.monotonic() - wall_s)
        print(
            f"\r{snapshot.running} streams, {snapshot.tokens_per_s:,.0f} tokens/s  ",
            end="",
            file=sys.stderr,
        )

    target = await find_target(url)
    endpoint = replace(ENDPOINTS[Api.generate], answer=answer)
    options = ReplayOptions(known_lengths=True)  # the stub ends answers at their limit
    run = await replay(trace, target, options, observe=observe, endpoint=endpoint)
    sent = np.concatenate([np.frombuffer(each.stamps) for each in answers])
    return run, run.tokens["time_s"].to_numpy() + min(zeros) - sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=2000)
    parser.add_argument("--rate", type=float, default=20.0, help="tokens per second and stream")
    parser.add_argument("--tokens", type=int, default=400, help="tokens per stream")
    parser.add_argument("--in-step", action="store_true", help="all streams at the same moments")
    parser.add_argument("--no-uvloop", action="store_true", help="asyncio's own event loop")
    options = parser.parse_args()
    trace = Trace(
        "many-streams",
        tuple(
            TraceRequest(number * OPEN_S / options.streams, 100, options.tokens, options.rate)
            for number in range(options.streams)
        ),
        Accounting(options.streams, options.streams),
    )
    behaviour = {
        "gap_s": 1 / options.rate,
        "jitter": not options.in_step,
        "in_step": options.in_step,
        "keep_bodies": False,
    }
    allow_many_files()
    print(f"load of the machine before: {os.getloadavg()[0]:.1f}")
    stub = subprocess.Popen(
        [sys.executable, str(STUB), json.dumps(behaviour)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert stub.stdout is not None
        url = stub.stdout.readline().strip()
        started, cpu = time.monotonic(), time.process_time()
        factory = asyncio.new_event_loop if options.no_uvloop else new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            run, late = runner.run(measure(url, trace))
        wall_s, cpu_s = time.monotonic() - started, time.process_time() - cpu
    finally:
        stub.kill()
        stub.wait()
    print("\n", end="", file=sys.stderr)
    wanted = options.streams * options.tokens
    errors = run.requests["error"].drop_null().to_pylist()
    steady = late[run.tokens["time_s"].to_numpy() > OPEN_S] * 1e3
    seconds = np.bincount(run.tokens["time_s"].to_numpy().astype(int))
    print(f"tokens: {late.size:,} of {wanted:,}; failed streams: {len(errors)} {errors[:1]}")
    print(f"tokens per second, busiest second: {seconds.max():,}")
    for name, values in (("all", late * 1e3), (f"after {OPEN_S:g} s", steady)):
        p50, p99, top = np.percentile(values, (50, 99, 100))
        print(f"stamp - sending, {name}: P50 {p50:.2f} ms, P99 {p99:.2f} ms, max {top:.1f} ms")
    print(f"send lag: P99 {1e3 * (run.info.send_lag_p99_s or 0.0):.1f} ms")
    print(f"client: {100 * cpu_s / wall_s:.0f} % of a core over {wall_s:.0f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"client: {peak:.0f} MiB at its peak")
    print(f"invalid: {run.info.invalid or 'no'}; load after: {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
