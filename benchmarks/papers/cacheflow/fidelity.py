"""How far the simulated restoration is from real SGLang: `python .../cacheflow/fidelity.py`.

A prefix of 32,768 tokens with 64 behind it comes back on an H200 with Llama-3.1-8B, chunks of
4,096, pages of 64. `MEASURED` is of 2026-11-22: SGLang 0.5.23 on the emulated device, its time
stretched three times, with a prototype of the executor. Writes a table of README.md.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenflow_sgl.profiles import DeviceProfile, load_profile
from tokenflow_sgl.sim import EngineOptions, simulate
from tokenflow_sgl.traces import Accounting, PrefixBlock, Trace, TraceRequest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))

from run import commit
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
PREFIX, SUFFIX = 32768, 64
MEASURED = {
    10.0: (3.595, 0.834),
    20.0: (1.813, 0.651),
    30.0: (1.243, 0.546),
    40.0: (0.997, 0.476),
    80.0: (0.524, 0.328),
}
"""Gbit/s: TTFT of stock's wait_complete, and by both sources, seconds."""


def ttft(profile: DeviceProfile, gbps: float, restore: str) -> float:
    """Seconds of a prompt that comes back after five others have taken all memory."""
    stored = (PrefixBlock(1, PREFIX),)
    whole = PREFIX + SUFFIX
    rows = [TraceRequest(0.0, whole, 2, rate=10.0, prefix=stored)]
    rows += [TraceRequest(100.0 * (k + 1), whole, 2, rate=10.0) for k in range(5)]
    rows.append(TraceRequest(1000.0, whole, 2, rate=10.0, prefix=stored))
    options = EngineOptions(
        max_total_tokens=2 * whole + 8192,
        host_tokens=2 * whole + 8192,
        page_size=64,
        chunked_prefill_size=4096,
        storage_gbps=gbps,
        storage_latency_us=0.0,
        hicache_storage_prefetch_policy="wait_complete",
        restore=restore,
    )
    trace = Trace("returning", tuple(rows), Accounting(len(rows), len(rows)))
    run = simulate(trace, profile, options, policy="fcfs-hicache", known_lengths=True).run
    times = zip(run.tokens["request"].to_pylist(), run.tokens["time_s"].to_pylist(), strict=True)
    return min(time for request, time in times if request == len(rows) - 1) - 1000.0


def main() -> None:
    profile = load_profile("h200", "llama3-8b")
    lines = [
        f"Commit {commit()}.\n",
        "| Gbit/s | wait_complete, measured | simulated | both sources, measured | simulated |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    for gbps, measured in MEASURED.items():
        cells = [f"{gbps:g}"]
        for seconds, restore in zip(measured, ("off", "auto"), strict=True):
            found = ttft(profile, gbps, restore)
            cells += [f"{seconds:.3f}", f"{found:.3f} ({found / seconds - 1:+.1%})"]
        lines.append("| " + " | ".join(cells) + " |")
    PAGE.write_text(replace_table(PAGE.read_text(), "fidelity", "\n".join(lines) + "\n"))


if __name__ == "__main__":
    main()
