"""How fast the simulator is, and how much memory it takes.

    python benchmarks/simulator_speed.py AzureLLMInferenceTrace_conv.csv
    python benchmarks/simulator_speed.py AzureLLMInferenceTrace_conv.csv --requests 1000000

Each run has a process of its own, so that its memory is its own, and serves one request before the
clock starts: the first one reads the device's tables and imports what writes a run. Without
--requests: steps per second of an engine that nobody disturbs, the trace once, twice and four times
in a row under tokenflow, and what a pass of its policy takes with 400 streams.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from tokenflow_sgl.contract import Decision, State
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.profiles.pool import chunked_prefill_size
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest, open_trace, transform
from tokenflow_sgl.lab.traces.generators.reading_rates import parse_rates
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy

STREAMS = 400
ALONE = Trace("alone", (TraceRequest(0.0, 100, 100, rate=20.0),), Accounting(1, 1))


class Watched:
    """tokenflow's policy with a watch: seconds of each pass under stress, with its streams."""

    def __init__(self) -> None:
        config = WorkingSetConfig()
        self.interval = config.cycle
        self.passes: list[tuple[int, float]] = []
        self._policy = WorkingSetPolicy(config)

    def decide(self, state: State) -> Decision:
        """As tokenflow's."""
        begun = time.perf_counter()
        decision = self._policy.decide(state)
        self.passes.append((len(state.streams), time.perf_counter() - begun))
        return decision


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("azure", type=Path, help="trace file")
    parser.add_argument("--requests", type=int, help="one run of so many requests instead")
    parser.add_argument("--policy", default="tokenflow")
    args = parser.parse_args()
    if args.requests:
        print(alone(served, args.azure, args.requests, args.policy))
        return
    print(alone(undisturbed))
    count = len(open_trace(f"azure:{args.azure}").requests)
    for times in (1, 2, 4):
        print(alone(served, args.azure, times * count, args.policy))
    print(alone(policy_pass))


def alone(function, *given):  # type: ignore[no-untyped-def]
    """The function's text, from a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *given).result()


def undisturbed() -> str:
    """32 streams that decode and nobody else."""
    requests = tuple(TraceRequest(0.0, 100, 20_000, rate=20.0) for _ in range(32))
    trace = Trace("steady", requests, Accounting(32, 32))
    steps, seconds = _timed(trace, "fcfs", 1_000_000)
    return f"stock, 32 streams: {steps:,} steps in {seconds:.2f} s, {steps / seconds:,.0f} a second"


def served(path: Path, requests: int, policy: str) -> str:
    """The trace again and again, up to so many requests."""
    trace = repeated(open_trace(f"azure:{path}"), requests)
    steps, seconds = _timed(trace, policy, None)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    hours = trace.requests[-1].arrival_s / 3600
    return (
        f"{policy}: {requests:,} requests, {hours:.1f} h, {steps:,} steps in {seconds:.1f} s, "
        f"peak {peak:,.0f} MiB"
    )


def policy_pass() -> str:
    """Passes with about `STREAMS` streams, of the workload h200-a."""
    watched = Watched()
    profile = load_profile("h200", "llama3-8b")
    simulate(
        open_trace("h200-a"),
        profile,
        EngineOptions(max_total_tokens=200_000, host_tokens=1_600_000, chunked_prefill_size=8192),
        policy=watched,
    )
    taken = [1e3 * seconds for streams, seconds in watched.passes if streams >= 0.95 * STREAMS]
    return (
        f"policy, {len(taken):,} passes with {STREAMS} streams: median {np.median(taken):.3f} ms, "
        f"P99 {np.percentile(taken, 99):.3f} ms"
    )


def repeated(trace: Trace, requests: int) -> Trace:
    """The trace one after the other, its readers at 20 tokens/s."""
    trace = transform.with_rates(trace, parse_rates("20"), 0)
    span = trace.requests[-1].arrival_s + 1.0
    times = -(-requests // len(trace.requests))
    many = [
        replace(request, arrival_s=request.arrival_s + span * number)
        for number in range(times)
        for request in trace.requests
    ][:requests]
    return replace(trace, requests=tuple(many), accounting=Accounting(requests, requests))


def _timed(trace: Trace, policy: str, kv_tokens: int | None) -> tuple[int, float]:
    profile = load_profile("h200", "llama3-8b")
    tokens = kv_tokens or profile.kv_pool_tokens
    options = EngineOptions(
        max_total_tokens=tokens,
        host_tokens=2 * tokens,
        chunked_prefill_size=chunked_prefill_size(profile.device_memory),
    )
    simulate(ALONE, profile, options, policy=policy)
    begun = time.perf_counter()
    done = simulate(trace, profile, options, policy=policy)
    return done.steps, time.perf_counter() - begun


if __name__ == "__main__":
    main()
