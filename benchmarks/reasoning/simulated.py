"""Reasoning traffic at lasting overload, simulated: stock SGLang against tokenflow.

    python benchmarks/reasoning/simulated.py servegen_deepseek-r1-morning_rates.csv

ServeGen's model of DeepSeek-R1 traffic, of which a share of the requests is kept, so that more
comes than the device can decode. Prints a Markdown table; takes a few minutes.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.profiles import load_profile
from tokenflow_sgl.profiles.pool import chunked_prefill_size
from tokenflow_sgl.report import figures
from tokenflow_sgl.sim import EngineOptions, simulate
from tokenflow_sgl.traces import Trace, open_trace
from tokenflow_sgl.traces.generators.reading_rates import RateMix
from tokenflow_sgl.traces.transform import sample, with_rates

DEVICE, MODEL = "h200", "llama3-8b"
HOST = 8.0
"""KV tokens on the host per one on the device."""
RATE = 20.0
"""Tokens per second of every reader."""
HEADS = ("run", "effective", "mean TTFVT", "P99 TTFVT", "mean TTFT", "mean stall", "stalled")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rates", type=Path, metavar="FILE", help="ServeGen's rates; lengths beside")
    parser.add_argument("--start", type=float, default=0.0, help="first second of the trace")
    parser.add_argument("--duration", type=float, default=120.0, help="seconds of arrivals")
    parser.add_argument("--share", type=float, default=1.0, help="share of requests that is kept")
    parser.add_argument("--kv-tokens", type=int, default=200_000, help="KV memory of the device")
    parser.add_argument("--seed", type=int, default=0, help="of the kept requests")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="config")
    parser.add_argument("--only", help="one policy")
    given = parser.parse_args()
    trace = kept(given.rates, given.start, given.duration, given.share, given.seed)
    values = dict(item.split("=") for item in given.set)
    config = WorkingSetConfig(**{name: float(value) for name, value in values.items()})
    found = {}
    for policy in ("stock", "tokenflow") if not given.only else (given.only,):
        found[policy] = row(trace, policy, given.kv_tokens, config)
        print(
            policy, {k: round(v, 3) for k, v in found[policy].items()}, file=sys.stderr, flush=True
        )
    report(trace, given.duration, found)


def kept(rates: Path, start: float, duration: float, share: float, seed: int) -> Trace:
    """The requests of the benchmark, each with its reader."""
    trace = open_trace(f"servegen:{rates}?start={start:g}&duration={duration:g}")
    if share < 1.0:
        trace = sample(trace, share, seed)
    return with_rates(trace, RateMix((RATE,)), seed)


def row(trace: Trace, policy: str, kv_tokens: int, config: WorkingSetConfig) -> dict[str, float]:
    """The figures of one run."""
    profile = load_profile(DEVICE, MODEL)
    options = EngineOptions(
        max_total_tokens=kv_tokens,
        host_tokens=int(HOST * kv_tokens),
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
    )
    done = simulate(
        trace, profile, options, policy="fcfs" if policy == "stock" else policy, config=config
    )
    seen = figures(done.run)
    return {
        "effective": seen.throughput.effective,
        "token": seen.throughput.token,
        "makespan": seen.throughput.makespan,
        "ttfvt": seen.latency.ttfvt.mean,
        "ttfvt_p99": seen.latency.ttfvt.p99,
        "ttft": seen.latency.ttft.mean,
        "stall": seen.readers.stall_mean,
        "stalled": seen.readers.stalled_share,
        "preempted": done.preempted,
    }


def report(trace: Trace, duration: float, found: dict[str, dict[str, float]]) -> None:
    """Print the table."""
    tokens = sum(request.output_tokens for request in trace.requests)
    print(len(trace.requests), "requests", tokens / duration, "tokens/s offered")


if __name__ == "__main__":
    main()
