"""How far the simulated restoration is from real SGLang: `python .../cacheflow/fidelity.py`.

A prefix of 32,768 tokens with 64 behind it comes back on an H200 with Llama-3.1-8B, chunks of
4,096, pages of 64. `MEASURED` is what benchmarks/restoration/live.py measured of real SGLang in
virtual time. Writes a table of README.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenflow_sgl.lab.profiles import DeviceProfile, load_profile
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Accounting, PrefixBlock, Trace, TraceRequest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "burst"))

from run import ROOT, commit
from table import replace_table

PAGE = Path(__file__).with_name("README.md")
PREFIX, SUFFIX = 32768, 64
OTHERS, BACK = 9, 1000.0
"""Other prompts between, a hundred seconds apart, and when the first one comes back."""
HOST = 3
"""The host's tokens of KV over the device's, as those of the measured servers."""
MEASURED = ROOT / "benchmarks" / "results" / "restoration" / "h200-llama3-8b-32768.json"
WAYS = {"wait_complete": "off", "restore": "auto"}
"""Contenders of benchmarks/restoration/live.py, and the simulator's setting of each."""


def ttft(profile: DeviceProfile, gbps: float, restore: str) -> float:
    """Seconds of a prompt that comes back after others have taken all memory."""
    stored = (PrefixBlock(1, PREFIX),)
    whole = PREFIX + SUFFIX
    rows = [TraceRequest(0.0, whole, 2, rate=10.0, prefix=stored)]
    rows += [TraceRequest(100.0 * (k + 1), whole, 2, rate=10.0) for k in range(OTHERS)]
    rows.append(TraceRequest(BACK, whole, 2, rate=10.0, prefix=stored))
    options = EngineOptions(
        max_total_tokens=2 * whole + 8192,
        host_tokens=HOST * (2 * whole + 8192),
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
    return min(time for request, time in times if request == len(rows) - 1) - BACK


def main() -> None:
    profile = load_profile("h200", "llama3-8b")
    lines = [
        f"Commit {commit()}.\n",
        "| Gbit/s | wait_complete, measured | simulated | both sources, measured | simulated |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    measured = json.loads(MEASURED.read_text())
    for gbps in measured["best split"]:
        cells = [gbps]
        for contender, restore in WAYS.items():
            seconds = measured[contender][gbps]
            found = ttft(profile, float(gbps), restore)
            cells += [f"{seconds:.3f}", f"{found:.3f} ({found / seconds - 1:+.1%})"]
        lines.append("| " + " | ".join(cells) + " |")
    PAGE.write_text(replace_table(PAGE.read_text(), "fidelity", "\n".join(lines) + "\n"))


if __name__ == "__main__":
    main()
