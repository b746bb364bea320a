"""How far the emulated device is from its profile: `python benchmarks/emulation_error.py`.

Compares what a client sees (TTFT and TPOT of one request, TPOT of 32 that decode together) with the
profile's prefill and decode times, and what a prefix hit in host memory costs over one on the
device when the rest of the prompt is long enough to hide the load.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.demo.server import SglangServer
from tokenflow_sgl.profiles import DeviceProfile, load_profile
from tokenflow_sgl.replay import ReplayOptions, Run, find_target, replay
from tokenflow_sgl.traces import Accounting, PrefixBlock, Trace, TraceRequest

TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
PROMPT, ANSWER, BATCH = 1000, 128, 32
REPEATS, APART_S = 8, 1.0
PREFIX, SUFFIX = 8000, 8000
POOL = 60_000

Times = list[NDArray[np.float64]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="h200")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--time-dilation", default="4")
    args = parser.parse_args()
    profile = load_profile(args.device, args.model)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "profile.json"
        profile.save(path)
        launcher = (TOKENFLOW, "serve-emulated", "--profile", str(path))
        launcher += ("--time-dilation", args.time_dilation, "--")
        options = ("--max-total-tokens", str(POOL), "--skip-tokenizer-init")
        options += ("--incremental-streaming-output", "--sleep-on-idle")
        options += ("--enable-hierarchical-cache", "--hicache-ratio", "4")
        options += ("--hicache-write-policy", "write_through")
        with SglangServer(None, options, launcher=launcher, log_path="emulation.log") as server:
            table = asyncio.run(_measure(server.url, profile))
    Console().print(table)


async def _measure(url: str, profile: DeviceProfile) -> Table:
    table = Table(title=f"{profile.model} on an emulated {profile.device}: client against profile")
    for heading in ("", "profile, ms", "client, ms", "difference"):
        table.add_column(heading, justify="left" if not heading else "right")

    def add(what: str, expected: float, found: float) -> None:
        difference = f"{found / expected - 1:+.1%}"
        table.add_row(what, f"{expected * 1e3:.2f}", f"{found * 1e3:.2f}", difference)

    singles = [_request(APART_S * number) for number in range(REPEATS)]
    due, times = await _run(url, "single", singles)
    ttft = float(np.median([stream[0] - at for stream, at in zip(times, due, strict=True)]))
    add("TTFT, one request", profile.prefill_seconds(PROMPT, PROMPT * PROMPT / 2), ttft)
    tpot = float(np.median([_tpot(stream, -np.inf) for stream in times]))
    add("TPOT, one request", _decode(profile, 1, range(PROMPT + 1, PROMPT + ANSWER)), tpot)

    due, times = await _run(url, "batch", [_request(0.0, answer=3 * ANSWER)] * BATCH)
    together = max(stream[0] for stream in times)
    late = [int(np.searchsorted(stream, together)) for stream in times]
    lengths = range(PROMPT + max(late), PROMPT + 3 * ANSWER)
    tpot = float(np.median([_tpot(stream, together) for stream in times]))
    add(f"TPOT, {BATCH} requests", _decode(profile, BATCH, lengths), tpot)

    shared = (PrefixBlock(1, PREFIX),)
    trace = [_request(0.0, PREFIX + SUFFIX, 1, shared)]
    trace += [_request(2.0, PREFIX + SUFFIX, 1, shared)]
    trace += [_request(4.0 + 2 * number, POOL // 2 - 100, 1) for number in range(4)]  # evict it
    trace += [_request(14.0, PREFIX + SUFFIX, 1, shared)]
    due, times = await _run(url, "prefix", trace)
    on_device, on_host = (float(times[number][0]) - due[number] for number in (1, -1))
    alone = profile.prefill_seconds(SUFFIX, SUFFIX * (PREFIX + SUFFIX / 2))
    add("TTFT, prefix on the device", alone, on_device)
    add("TTFT, prefix on the host, over the device", on_device, on_host)
    load = profile.load_seconds(PREFIX)
    table.caption = f"loading the prefix alone takes {load * 1e3:.1f} ms"
    return table


def _request(
    at: float, prompt: int = PROMPT, answer: int = ANSWER, prefix: tuple[PrefixBlock, ...] = ()
) -> TraceRequest:
    return TraceRequest(at, prompt, answer, rate=20.0, prefix=prefix)


async def _run(url: str, name: str, requests: list[TraceRequest]) -> tuple[list[float], Times]:
    """Replay; due times and token times of each request, emulated seconds."""
    trace = Trace(name, tuple(requests), Accounting(len(requests), len(requests)))
    seed = sum(name.encode())  # each run its own prompts, or it would hit the prefixes of another
    run: Run = await replay(trace, await find_target(url), ReplayOptions(seed=seed))
    if run.info.invalid:
        raise SystemExit(f"{name}: " + " ".join(run.info.invalid))
    tokens = run.tokens.to_pydict()
    of, at = np.array(tokens["request"]), np.array(tokens["time_s"])
    due = run.requests.column("scheduled_s").to_pylist()
    return due, [at[of == number] for number in range(len(requests))]


def _tpot(times: NDArray[np.float64], since: float) -> float:
    inside = times[times >= since]
    return float(inside[-1] - inside[0]) / (len(inside) - 1)


def _decode(profile: DeviceProfile, batch: int, lengths: range) -> float:
    """Mean step time of a batch whose contexts grow over `lengths`."""
    return float(np.mean([profile.decode_seconds(batch, batch * length) for length in lengths]))


if __name__ == "__main__":
    main()
