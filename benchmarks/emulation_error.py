"""How far the emulated device is from its profile: `python benchmarks/emulation_error.py`.

Compares what a client sees (TTFT and TPOT of one request, TPOT of 32 that decode together) with the
profile's prefill and decode times, what a prefix hit in host memory costs over one on the device
when the rest of the prompt is long enough to hide the load, and what one in an emulated storage
takes over its link.

HTTP and the scheduler take some 16 ms of wall clock per request, which no profile contains. So
single requests run on a second server whose time is stretched so far that this hardly counts.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from tokenflow_sgl.costs import attention_work
from tokenflow_sgl.lab.demo.server import SglangServer
from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.replay import ReplayOptions, find_target, replay
from tokenflow_sgl.lab.runs import Run
from tokenflow_sgl.lab.traces import Accounting, PrefixBlock, Trace, TraceRequest
from tokenflow_sgl_emulator.storage.storage_flags import storage_flags

TOKENFLOW = str(Path(sys.executable).with_name("tokenflow"))
PROMPT, BATCH = 1000, 32
SHORT_ANSWER, LONG_ANSWER = 16, 384
REPEATS, APART_S = 8, 0.25
PREFIX, SUFFIX = 8000, 8000
POOL = 60_000
STORED, AFTER_STORED = 8192, 32
LATENCY_US, GBPS = 200.0, (10.0, 80.0)
PAGE, BATCH_PAGES = 64, 128
"""Tokens of a page, and the pages that HiCache reads in one call."""

Times = list[NDArray[np.float64]]
Finding = tuple[str, float, float]
"""What was measured, what the profile says, what the client saw; seconds."""
Measure = Callable[[str, DeviceProfile], Coroutine[Any, Any, list[Finding]]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="h200")
    parser.add_argument("--model", default="llama3-8b")
    parser.add_argument("--time-dilation", default="4")
    parser.add_argument("--single-dilation", default="40", help="for single requests")
    args = parser.parse_args()
    profile = load_profile(args.device, args.model)
    table = Table(title=f"{profile.model} on an emulated {profile.device}: client against profile")
    for heading in ("", "dilation", "profile, ms", "client, ms", "difference"):
        table.add_column(heading, justify="left" if not heading else "right")
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "profile.json"
        profile.save(path)
        servers: list[tuple[str, Measure, Sequence[str]]] = [
            (args.single_dilation, _alone, ()),
            (args.time_dilation, _together, ()),
        ]
        for gbps in GBPS:
            options = storage_flags(read_gbps=gbps, write_gbps=1000.0, latency_us=LATENCY_US)
            options += ["--page-size", str(PAGE)]
            servers.append((args.single_dilation, partial(_from_storage, gbps), options))
        for dilation, measure, options in servers:
            for what, expected, found in _on_a_server(path, dilation, measure, profile, options):
                difference = f"{found / expected - 1:+.1%}"
                numbers = (f"{expected * 1e3:.2f}", f"{found * 1e3:.2f}")
                table.add_row(what, dilation, *numbers, difference)
    load = profile.load_seconds(PREFIX)
    table.caption = f"loading the prefix alone takes {load * 1e3:.1f} ms"
    Console().print(table)


def _on_a_server(
    path: Path, dilation: str, measure: Measure, profile: DeviceProfile, more: Sequence[str]
) -> list[Finding]:
    launcher = (TOKENFLOW, "serve-emulated", "--profile", str(path))
    launcher += ("--time-dilation", dilation, "--")
    options = ("--max-total-tokens", str(POOL), "--skip-tokenizer-init")
    options += ("--incremental-streaming-output", "--sleep-on-idle")
    options += ("--enable-hierarchical-cache", "--hicache-ratio", "4")
    options += ("--hicache-write-policy", "write_through")
    options += tuple(more)
    with SglangServer(None, options, launcher=launcher, log_path="emulation.log") as server:
        return asyncio.run(measure(server.url, profile))


async def _alone(url: str, profile: DeviceProfile) -> list[Finding]:
    singles = [_request(APART_S * number) for number in range(REPEATS)]
    due, times = await _run(url, "single", singles)
    ttft = float(np.median([stream[0] - at for stream, at in zip(times, due, strict=True)]))
    tpot = float(np.median([_tpot(stream, -np.inf) for stream in times]))
    lengths = range(PROMPT + 1, PROMPT + SHORT_ANSWER)
    return [
        ("TTFT, one request", profile.prefill_seconds(PROMPT, attention_work(PROMPT)), ttft),
        ("TPOT, one request", _decode(profile, 1, lengths), tpot),
    ]


async def _together(url: str, profile: DeviceProfile) -> list[Finding]:
    due, times = await _run(url, "batch", [_request(0.0, answer=LONG_ANSWER)] * BATCH)
    together = max(stream[0] for stream in times)
    late = [int(np.searchsorted(stream, together)) for stream in times]
    lengths = range(PROMPT + max(late), PROMPT + LONG_ANSWER)
    tpot = float(np.median([_tpot(stream, together) for stream in times]))

    shared = (PrefixBlock(1, PREFIX),)
    trace = [_request(0.0, PREFIX + SUFFIX, 1, shared)]
    trace += [_request(2.0, PREFIX + SUFFIX, 1, shared)]
    trace += [_request(4.0 + 2 * number, POOL // 2 - 100, 1) for number in range(4)]  # evict it
    trace += [_request(14.0, PREFIX + SUFFIX, 1, shared)]
    due, times = await _run(url, "prefix", trace)
    on_device, on_host = (float(times[number][0]) - due[number] for number in (1, -1))
    alone = profile.prefill_seconds(SUFFIX, SUFFIX * (PREFIX + SUFFIX / 2))
    return [
        (f"TPOT, {BATCH} requests", _decode(profile, BATCH, lengths), tpot),
        ("TTFT, prefix on the device", alone, on_device),
        ("TTFT, prefix on the host, over the device", on_device, on_host),
    ]


async def _from_storage(gbps: float, url: str, profile: DeviceProfile) -> list[Finding]:
    trace = [_request(0.0, STORED + AFTER_STORED, 1)]
    await _run(url, "stored", trace)
    times = []
    for _ in range(REPEATS // 4):
        await asyncio.to_thread(_flush, url)
        (due,), (stream,) = await _run(url, "stored", trace)
        times.append(float(stream[0]) - due)
    calls = 1 + math.ceil(STORED / PAGE / BATCH_PAGES)  # a query, and the reads
    fetch = STORED * profile.kv_bytes_per_token * 8 / (gbps * 1e9) + calls * LATENCY_US * 1e-6
    work = attention_work(AFTER_STORED, STORED)
    what = f"TTFT, prefix in a storage at {gbps:g} Gbps"
    prefill = profile.prefill_seconds(AFTER_STORED, work)
    # From the host it is loaded layer by layer, and each layer is computed when it is there.
    load = profile.load_seconds(STORED)
    expected = fetch + max(load + prefill / profile.layers, prefill)
    return [(what, expected, float(np.median(times)))]


def _flush(url: str) -> None:
    """Empty device and host, once everything is written to the storage."""
    flush = urllib.request.Request(f"{url}/flush_cache?timeout=60", method="POST")
    with urllib.request.urlopen(flush, timeout=120):
        pass


def _request(
    at: float,
    prompt: int = PROMPT,
    answer: int = SHORT_ANSWER,
    prefix: tuple[PrefixBlock, ...] = (),
) -> TraceRequest:
    return TraceRequest(at, prompt, answer, rate=20.0, prefix=prefix)


async def _run(url: str, name: str, requests: list[TraceRequest]) -> tuple[list[float], Times]:
    """Replay; due times and token times of each request, emulated seconds."""
    trace = Trace(name, tuple(requests), Accounting(len(requests), len(requests)))
    seed = sum(name.encode())  # each run its own prompts, or it would hit the prefixes of another
    # With known lengths all requests of a batch start at once.
    options = ReplayOptions(seed=seed, known_lengths=True)
    run: Run = await replay(trace, await find_target(url), options)
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
