"""Times what SGLang's scheduler itself does per pass with its queue, without a server.

    python benchmarks/sglang_pass.py [--running 334] [--passes 200]

Beside `policy_pass.py`: `SchedulePolicy.calc_priority` on a queue of 128 (the longest that SGLang
matches with its prefix tree), 1,000 and 10,000 requests, and the construction of a `PrefillAdder`
with running requests. Real requests of SGLang, with a prefix tree that is empty and has no memory
pools. Milliseconds of CPU time, median and P99.
"""

from __future__ import annotations

import argparse
import time
import warnings
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # SGLang's imports warn about third parties
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.schedule_policy import PrefillAdder, SchedulePolicy
    from sglang.srt.mem_cache.radix_cache import RadixCache
    from sglang.srt.sampling.sampling_params import SamplingParams
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

QUEUES = (128, 1000, 10_000)
POLICIES = ("fcfs", "lpm", "shortest-prefill-first")


def requests(count: int) -> list[Any]:
    """Requests with prompts of 50 to 2,000 tokens, a token each made."""
    rng = np.random.default_rng(1)
    made = []
    for number in range(count):
        prompt = array("q", rng.integers(0, 30_000, int(rng.integers(50, 2000))).tolist())
        req = Req(str(number), "", prompt, SamplingParams(max_new_tokens=2048))
        req.output_ids.append(1)
        made.append(req)
    return made


def show(name: str, passes: int, work: Callable[..., object], *arguments: Any) -> None:
    """Time the call, and print a row."""
    seconds = []
    for _ in range(passes):
        started = time.thread_time()
        work(*arguments)
        seconds.append(time.thread_time() - started)
    median, late = np.percentile(np.array(seconds) * 1e3, (50, 99))
    print(f"{name:<52}{median:>9.3f}{late:>9.3f}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--running", type=int, default=334)
    parser.add_argument("--passes", type=int, default=200)
    options = parser.parse_args()
    set_global_server_args_for_scheduler(ServerArgs(model_path="none", device="cpu"))
    tree = RadixCache.create_simulated()
    waiting = requests(max(QUEUES))
    print(f"{'':<52}{'median':>9}{'P99':>9}")
    for name in POLICIES:
        for count in QUEUES:
            policy = SchedulePolicy(name, tree, False, False, False)
            passes = options.passes if count < 1000 else max(options.passes // 20, 1)
            row = f"calc_priority, {name}, {count} wait"
            show(row, passes, policy.calc_priority, waiting[:count])
    budget = SimpleNamespace(total_offset=0.0)
    allocator = SimpleNamespace(create_prefill_budget=lambda *_args, **_more: budget)
    batch = SimpleNamespace(reqs=waiting[: options.running])
    row = f"PrefillAdder, {options.running} run"
    show(row, options.passes, PrefillAdder, 1, tree, allocator, batch, 0.7, 16384, 8192)


if __name__ == "__main__":
    main()
