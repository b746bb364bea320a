"""Times one pass of the working-set policy, the way the live scheduler calls it.

    python benchmarks/policy_pass.py [--only 1000 1000+10000]
    python benchmarks/policy_pass.py --against COMMIT [--rounds 40] [--passes 25]

Builds tables of streams under stress (a third of them running, a third paused, a third waiting,
and of N+Q another Q waiting), and times what an iteration costs on top of the engine: a pass
(build the state, decide, carry out what concerns the table), and accounting the tokens of the
running streams. Three kinds of pass: a plan (every cycle and on every arrival), the passes between
two plans, and an idle server. And what a pass takes longer because an answer has ended before it:
the lengths of answers are learned anew. All of it is CPU time.

With --against the same script runs with the package as of a commit and as it is here, a few passes
at a time in turns, and the median ratio of the rounds is printed beside both versions' figures.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from versions import ROOT, Asked, checked_out

from tokenflow_sgl.contract import Memory, Phase, Pool, State, Tier, Traits, Write
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.lifecycle import apply
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy import WorkingSetPolicy, make_predictor
from tokenflow_sgl.policy.working_set import WorkingSetMemo

if TYPE_CHECKING:
    # Older commits do not have these.
    from tokenflow_sgl.lifecycle import Missing
    from tokenflow_sgl.lifecycle.actuator import Action
    from tokenflow_sgl.offload import DeviceRoom

COSTS = StepCosts(decode=(0.008, 2e-5, 2e-8), prefill=(0.004, 6e-5, 1e-9), load=(0.001, 3e-6))
START = 20.0
"""When the passes begin; all streams came in the first half of the time before."""
KINDS = ("plan", "between plans", "idle", "accounting", "learning")
PERCENTILES = (10.0, 50.0, 90.0, 99.0)
"""The first one is compared: other work on the machine makes passes slower, never faster."""


class Size(NamedTuple):
    """How many streams there are, and how many requests wait beside them."""

    streams: int
    queued: int = 0

    @classmethod
    def of(cls, text: str) -> Size:
        """Of "1000" or "1000+10000"."""
        return cls(*map(int, text.split("+")))

    def __str__(self) -> str:
        return f"{self.streams}+{self.queued}" if self.queued else str(self.streams)


SIZES = (Size(400), Size(1000), Size(4000), Size(1000, 1000), Size(1000, 10_000))


@dataclass(eq=False)
class Request:
    """Stands in for SGLang's: the table reads its output's length, and how much of it was sent."""

    output_ids: list[int] = field(default_factory=list)

    @property
    def send_token_offset(self) -> int:
        """All of it was sent."""
        return len(self.output_ids)


class Refusing:
    """A body that changes nothing, so that each pass sees what the one before it saw."""

    busy, prefetching = True, False

    def accepts(self, action: Action) -> bool:
        """Nothing."""
        return False

    def write(self, writes: Sequence[Write]) -> int:
        """Not reached."""
        return 0

    def preempt(self, slots: Sequence[int]) -> None:
        """Not reached."""

    def place(self, places: Sequence[object]) -> None:
        """Not reached."""

    @property
    def room(self) -> DeviceRoom:
        """Not reached."""
        raise NotImplementedError

    def missing(self, slot: int) -> Missing:
        """Not reached."""
        raise NotImplementedError

    def load(self, slot: int, tokens: int) -> int:
        """Not reached."""
        return 0

    def give_up(self, slot: int) -> None:
        """Not reached."""

    def copying(self, slot: int) -> bool:
        """Nothing is."""
        return False

    def offer(
        self,
        slots: Sequence[int] | None,
        recompute: frozenset[int],
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        """Offered to no one."""


def build(size: Size, stress: bool) -> tuple[StreamTable[Request], list[Request]]:
    """A table of `size`; without `stress` all streams run, far from any limit."""
    rng = np.random.default_rng(1)
    lengths = make_predictor("learned")
    for length in rng.integers(100, 2000, 1024).tolist():
        lengths.ended(0, length, cut_off=False)
    table: StreamTable[Request] = StreamTable(lengths)
    requests = []
    number_of_all = size.streams + (size.queued if stress else 0)
    for number in range(number_of_all):
        request = Request()
        requests.append(request)
        arrival = START / 2 * number / number_of_all
        prompt, rate = int(rng.integers(50, 2000)), float(rng.choice([5.0, 10.0, 20.0]))
        comes(table, request, prompt, rate, arrival)
        third = number % 3 if stress else 0
        if number >= size.streams or third == 2:
            continue
        table.move(request, Phase.RUNNING, arrival)
        request.output_ids.extend([1] * int(rng.integers(1, 800)))
    table.collect(START)
    for request in requests[1 : size.streams : 3] if stress else ():
        table.move(request, Phase.PAUSED, START)
        # None of the paused is about to run dry, which would call for a plan.
        table.readers.next_due[table.slot(request)] = START + float(rng.uniform(1e3, 2e3))
    return table, requests


def passes(
    table: StreamTable[Request], count: int, *, stress: bool, plan: bool
) -> tuple[list[float], list[float]]:
    """CPU seconds of each of `count` passes, and of the accounting before each."""
    policy, body = WorkingSetPolicy(), Refusing()
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
    memo = WorkingSetMemo()
    seconds, accounting = [], []
    now = START
    for _ in range(count):
        now += 0.001
        for request in live:
            request.output_ids.append(1)
        started = time.thread_time()
        table.collect(now)
        accounting.append(time.thread_time() - started)
        started = time.thread_time()
        state = State(
            now=now,
            streams=table.streams(()),
            memory=memory,
            costs=COSTS,
            throughput=3000.0,
            memo=memo,
        )
        decision = policy.decide(state)
        apply(decision, table.phases, body, now)
        seconds.append(time.thread_time() - started)
        # A plan is due in every pass, or in none.
        memo = decision.memo if isinstance(decision.memo, WorkingSetMemo) else WorkingSetMemo()
        memo = dataclasses.replace(memo, planned=-np.inf if plan else now)
    return seconds, accounting


def learning(streams: int, count: int) -> list[float]:
    """CPU seconds of learning the lengths after each of `count` answers, beside so many others."""
    rng = np.random.default_rng(2)
    lengths = make_predictor("learned")
    kinds = [lengths.kind(Traits(prompt, 4096)) for prompt in (100, 500, 2000, 8000, 20_000)]
    kind, generated = rng.choice(kinds, streams), rng.integers(1, 2000, streams)
    seconds = []
    for place in rng.integers(0, streams, count).tolist():
        generated += 1
        lengths.ended(int(kind[place]), int(generated[place]), cut_off=False)
        generated[place] = 1
        started = time.thread_time()
        lengths.lengths(kind, generated)
        seconds.append(time.thread_time() - started)
    return seconds


@cache
def built(size: Size, kind: str) -> StreamTable[Request]:
    """The table for this kind of pass; each block of passes goes on where the last one ended."""
    return build(size, stress=kind != "idle")[0]


def measure(size: Size, count: int) -> dict[str, list[float]]:
    """By kind of pass: its percentiles, in milliseconds."""
    found = {}
    for kind in ("plan", "between plans", "idle"):
        stress, plan = kind != "idle", kind != "between plans"
        found[kind], accounting = passes(built(size, kind), count, stress=stress, plan=plan)
        if kind == "between plans":
            found["accounting"] = accounting
    found["learning"] = learning(size.streams, count)
    return {
        name: (np.percentile(seconds, PERCENTILES) * 1e3).tolist()
        for name, seconds in found.items()
    }


def answer() -> None:
    """Measure what each line of the input asks for."""
    for line in sys.stdin:
        size, count = line.split()
        print(json.dumps(measure(Size.of(size), int(count))), flush=True)


def compare(commit: str, sizes: Sequence[Size], count: int, rounds: int) -> None:
    """Print what both versions take, and the median of the rounds' ratios."""
    print(f"{'streams':<12}{'pass':<15}{'before':>9}{'now':>9}{'ratio':>9}")
    told = (__file__, "--told")
    with checked_out(commit) as tree, Asked(told, tree) as before, Asked(told, ROOT) as now:
        for size in sizes:
            turns = []
            for number in range(rounds):
                # Neither is always the first.
                order = (before, now) if number % 2 else (now, before)
                found = {version: version.ask(f"{size} {count}") for version in order}
                turns.append((found[before], found[now]))
            for kind in KINDS:
                least = np.array([[found[kind][0] for found in turn] for turn in turns])
                ratio = np.median(least[:, 1] / least[:, 0])
                old, new = np.median(least, axis=0)
                print(f"{size!s:<12}{kind:<15}{old:>9.3f}{new:>9.3f}{ratio:>9.2f}", flush=True)


def comes(
    table: StreamTable[Request], request: Request, prompt: int, rate: float, arrival: float
) -> None:
    """A stream comes, to the table of this version or of an older one."""
    try:
        from tokenflow_sgl.lifecycle.table import Newcomer
    except ImportError:
        old = {"prompt": prompt, "limit": 2048, "rate": rate, "qos_class": "reading"}
        table.track(request, **old, arrival=arrival, now=arrival)
        return
    from tokenflow_sgl.qos.classes import QosClass

    table.track(request, QosClass("reading", rate), Newcomer(prompt, 2048, arrival, arrival))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", type=Size.of, default=SIZES, metavar="N[+Q]")
    parser.add_argument("--passes", type=int, default=25, help="per kind and round")
    parser.add_argument("--against", metavar="COMMIT", help="compare with this version")
    parser.add_argument("--rounds", type=int, default=40, help="of a comparison")
    parser.add_argument("--told", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.told:
        answer()
        return
    if options.against:
        compare(options.against, options.only, options.passes, options.rounds)
        return
    count = options.passes * options.rounds
    print(f"{count} passes per kind; milliseconds of CPU time")
    print(f"{'streams':<12}{'pass':<15}{'P10':>9}{'median':>9}{'P90':>9}{'P99':>9}")
    for size in options.only:
        for kind, figures in measure(size, count).items():
            row = "".join(f"{figure:>9.3f}" for figure in figures)
            print(f"{size!s:<12}{kind:<15}{row}", flush=True)


if __name__ == "__main__":
    main()
