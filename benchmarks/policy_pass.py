"""Times one pass of the working-set policy, the way the live scheduler calls it.

    python benchmarks/policy_pass.py [--streams 1000] [--passes 2000]

Builds a table of streams under stress (a third of them running, a third paused, a third
waiting), and times what an iteration costs on top of the engine: a policy pass (build
the state and decide, what the metric tokenflow:policy_pass_seconds measures), and
accounting the tokens of the running streams. Three kinds of pass: a plan (every cycle
and on every arrival), the passes between two plans, and an idle server.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from dataclasses import dataclass, field

import numpy as np

from tokenflow_sgl.contract import Memory, Phase, Pool, State, Tier
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy import WorkingSetPolicy
from tokenflow_sgl.policy.learned_lengths import LearnedLengths
from tokenflow_sgl.policy.working_set import Memo

COSTS = StepCosts(decode=(0.008, 2e-5, 2e-8), prefill=(0.004, 6e-5, 1e-9), load=(0.001, 3e-6))


@dataclass(eq=False)
class Request:
    """Stands in for SGLang's: the table reads its output's length, and how much of it was sent."""

    output_ids: list[int] = field(default_factory=list)

    @property
    def send_token_offset(self) -> int:
        """All of it was sent."""
        return len(self.output_ids)


def build(streams: int, queued: int, stress: bool) -> tuple[StreamTable[Request], list[Request]]:
    """A table of `streams`; all running and far from any limit without `stress`, else `queued`."""
    rng = np.random.default_rng(1)
    lengths = LearnedLengths()
    for length in rng.integers(100, 2000, 1024).tolist():
        lengths.ended(0, length, cut_off=False)
    table: StreamTable[Request] = StreamTable(lengths)
    requests = []
    for number in range(streams + (queued if stress else 0)):
        request = Request()
        requests.append(request)
        table.track(
            request,
            prompt=int(rng.integers(50, 2000)),
            limit=2048,
            rate=float(rng.choice([5.0, 10.0, 20.0])),
            qos_class="reading",
            arrival=number * 0.01,
            now=number * 0.01,
        )
        third = number % 3 if stress else 0
        if number >= streams:
            continue
        if third == 2:
            continue
        table.move(request, Phase.RUNNING, number * 0.01)
        request.output_ids.extend([1] * int(rng.integers(1, 800)))
    table.collect(20.0)
    for number, request in enumerate(requests):
        if stress and number % 3 == 1:
            table.move(request, Phase.PAUSED, 20.0)
            slot = table.slot(request)
            # Nobody among the paused is about to run dry, which would call for a plan.
            table.readers.next_due[slot] = 20.0 + float(rng.uniform(1e3, 2e3))
    return table, requests


def passes(
    table: StreamTable[Request], count: int, *, stress: bool, plan: bool
) -> tuple[list[float], list[float]]:
    """Seconds of each of `count` policy passes, and of the accounting before each."""
    policy = WorkingSetPolicy()
    live = table.requests(Phase.RUNNING)
    slots = [table.slot(request) for request in live]
    held = int((table.prompt[slots] + table.generated[slots]).sum())
    total = int(held / 0.97) if stress else 4 * held
    memory = Memory(
        device=Tier(kv=Pool(total, total - held)),
        host=Tier(kv=Pool(3 * total)),
        page_size=16,
        max_running=4096,
    )
    memo = Memo()
    seconds, accounting = [], []
    now = 20.0
    for _ in range(count):
        now += 0.001
        for request in live:
            request.output_ids.append(1)
        started = time.perf_counter()
        table.collect(now)
        accounting.append(time.perf_counter() - started)
        started = time.perf_counter()
        state = State(
            now=now,
            streams=table.streams(()),
            memory=memory,
            costs=COSTS,
            throughput=3000.0,
            memo=memo,
        )
        decision = policy.decide(state)
        seconds.append(time.perf_counter() - started)
        # A plan is due in every pass, or in none.
        memo = decision.memo if isinstance(decision.memo, Memo) else Memo()
        memo = dataclasses.replace(memo, planned=-np.inf if plan else now)
    return seconds, accounting


def show(name: str, seconds: list[float]) -> None:
    """One row, in milliseconds."""
    figures = np.percentile(np.array(seconds) * 1e3, (50, 90, 99))
    print(f"{name:<14}" + "".join(f"{value:>9.3f}" for value in figures))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000, help="tracked requests")
    parser.add_argument("--queued", type=int, default=0, help="requests that wait beside them")
    parser.add_argument("--passes", type=int, default=2000, help="passes per kind")
    options = parser.parse_args()
    kinds = (("plan", True, True), ("between plans", True, False), ("idle", False, True))
    print(f"{options.streams} tracked streams, {options.passes} passes per kind; milliseconds")
    print(f"{'pass':<14}{'median':>9}{'P90':>9}{'P99':>9}")
    for name, stress, plan in kinds:
        table, _ = build(options.streams, options.queued, stress)
        deciding, accounting = passes(table, options.passes, stress=stress, plan=plan)
        show(name, deciding)
    show("accounting", accounting)


if __name__ == "__main__":
    main()
