"""Reasoning traffic at three times the device's load, simulated: stock SGLang against tokenflow.

    python benchmarks/reasoning/simulated.py servegen_deepseek-r1-morning_rates.csv

ServeGen's model of DeepSeek-R1 traffic, two minutes of it, on an H200 with two sizes of KV memory.
No server knows when an answer ends, or its thinking. Prints Markdown tables; takes minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import pyarrow as pa

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.report import Figures, figures
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Trace, open_trace
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.output_limits import REASONING_LIMIT
from tokenflow_sgl.lab.traces.transform import with_rates
from tokenflow_sgl.policy import WorkingSetConfig

DEVICE, MODEL = "h200", "llama3-8b"
HOST = 8
"""KV tokens on the host per one on the device, as in the other benchmarks."""
RATE = 20.0
"""Tokens per second of every reader."""
SECONDS = 120.0
"""Of arrivals; all of them are served to the end."""
LOADS = {
    "200k": (0.0, 200_000, 0),
    "all": (7200.0, 916_069, 0),
    "later": (3600.0, 200_000, 0),
    "later, seed 1": (3600.0, 200_000, 1),
}
"""First second of the trace, KV tokens of the device, and the trace's seed; about three times what
the device can decode. The order of thoughts was chosen on the last two."""
CONTENDERS = ("stock", "thinking read", "tokenflow", "thinking-rate 1000", "thinking-rate 20")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rates", type=Path, metavar="FILE", help="ServeGen's rates; lengths beside")
    parser.add_argument("--load", choices=LOADS, action="append", help="default: all")
    parser.add_argument("--only", choices=CONTENDERS, action="append", help="default: all")
    given = parser.parse_args()
    for name in given.load or LOADS:
        start, kv_tokens, seed = LOADS[name]
        spec = f"servegen:{given.rates}?start={start:g}&duration={SECONDS:g}&seed={seed}"
        trace = open_trace(spec)
        trace = with_rates(trace, RateMix((RATE,)), seed=0)
        offered = sum(request.output_tokens for request in trace.requests) / SECONDS
        print(f"\n{name}: {len(trace.requests):,} requests, {offered:,.0f} tokens/s asked for\n")
        print(
            "| run | effective | raw | mean TTFVT | P99 TTFVT | mean TTFT | mean stall | stalled |"
        )
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        base = None
        for contender in given.only or CONTENDERS:
            found = run(trace, contender, kv_tokens)
            base = base or found
            print(row(contender, found, base), flush=True)


def run(trace: Trace, contender: str, kv_tokens: int) -> Figures:
    """One simulated run, judged by what readers see."""
    profile = load_profile(DEVICE, MODEL)
    options = EngineOptions(
        max_total_tokens=kv_tokens,
        host_tokens=HOST * kv_tokens,
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
    )
    config = WorkingSetConfig()
    if contender.startswith("thinking-rate"):
        config = WorkingSetConfig(thinking_rate=float(contender.split()[1]))
    asked = read(trace) if contender == "thinking read" else trace
    policy = "fcfs" if contender == "stock" else "tokenflow"
    made = simulate(asked, profile, options, policy=policy, config=config).run
    # The reader that is judged sees no reasoning, whatever the scheduler took it for.
    at = made.requests.column_names.index("reasoning_tokens")
    hidden = pa.array([request.reasoning_tokens for request in trace.requests], pa.int32())
    requests = made.requests.set_column(at, "reasoning_tokens", hidden)
    return figures(dataclasses.replace(made, requests=requests))


def read(trace: Trace) -> Trace:
    """The same for a scheduler that takes reasoning for text: `--tokenflow-thinking shown`."""
    requests = (
        dataclasses.replace(request, reasoning_tokens=0, limit_tokens=REASONING_LIMIT)
        for request in trace.requests
    )
    return dataclasses.replace(trace, requests=tuple(requests))


def row(name: str, found: Figures, base: Figures) -> str:
    """A line of the table; ratios are to the first run."""
    latency, rate, readers = found.latency, found.throughput, found.readers
    cells = [
        f"{rate.effective:,.0f} ({rate.effective / base.throughput.effective:.2f}x)",
        f"{rate.token:,.0f}",
        f"{latency.ttfvt.mean:.1f} s ({latency.ttfvt.mean / base.latency.ttfvt.mean:.2f}x)",
        f"{latency.ttfvt.p99:.0f} s ({latency.ttfvt.p99 / base.latency.ttfvt.p99:.2f}x)",
        f"{latency.ttft.mean:.1f} s",
        f"{readers.stall_mean:.3f} s",
        f"{readers.stalled_share:.1%}".replace("%", " %"),
    ]
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
