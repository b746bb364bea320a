"""The simulator's queue orders beside SGLang's own `SchedulePolicy`, on random queues."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.mem_cache.base_prefix_cache import InsertParams
from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.sim import EngineOptions
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.schedulers.by_name import make_scheduler
from tokenflow_sgl.lab.sim.schedulers.cache_aware import MOST_SORTED, request_id
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.step import SimulatedDevice
from tokenflow_sgl.lab.traces import PrefixBlock, TraceRequest

POLICIES = {"hrrn": "hrrn", "lpm": "lpm", "shortest-prefill": "shortest-prefill-first"}
"""By the simulator's name: SGLang's."""


@pytest.fixture(autouse=True)
def published_context(monkeypatch) -> None:
    """What SGLang's policy asks a running server for."""
    monkeypatch.setattr(
        "sglang.srt.managers.schedule_policy.get_disagg",
        lambda: SimpleNamespace(disaggregation_mode="null"),
    )


def drawn(rng: random.Random, count: int) -> list[TraceRequest]:
    """Prompts that begin with some of a few stretches, so that many share one."""
    requests = []
    for index in range(count):
        stems = [rng.choice((1, 2)), rng.choice((3, 4, 5)), rng.choice((6, 7))]
        lengths = {1: 20, 2: 70, 3: 11, 4: 12, 5: 40, 6: 5, 7: 90}
        taken = stems[: rng.randrange(4)]
        prefix = tuple(PrefixBlock(stem, lengths[stem]) for stem in taken)
        shared = sum(block.tokens for block in prefix)
        own = rng.choice((0, 1, 30, 300)) if shared else rng.choice((1, 30, 300))
        requests.append(TraceRequest(0.01 * index, shared + own, 20, prefix=prefix))
    return requests


def token_ids(index: int, request: TraceRequest) -> list[int]:
    """The same ids for the same stretch after the same ones, and for nothing else."""
    found: list[int] = []
    for block in request.prefix:
        found += range(1000 * block.id, 1000 * block.id + block.tokens)
    own = request.prompt_tokens - len(found)
    return found + list(range(100_000 * (index + 1), 100_000 * (index + 1) + own))


def waits(index: int, request: TraceRequest, came: int) -> SimpleNamespace:
    """What SGLang's policy reads of a request."""
    ids = token_ids(index, request)
    return SimpleNamespace(
        rid=request_id(index),
        origin_input_ids=ids,
        output_ids=[],
        extra_key=None,
        cache_salt=None,
        kv=SimpleNamespace(),
        arrival_processed_tokens=came,
        time_stats=SimpleNamespace(wait_queue_entry_time=request.arrival_s),
        _compute_max_prefix_len=lambda length: length - 1,
    )


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(25))
def test_the_queue_has_the_order_of_sglang(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    requests = drawn(rng, rng.choice((5, 40, MOST_SORTED, MOST_SORTED + 1)))
    options = EngineOptions(max_total_tokens=1_000_000)
    core = SimulatedCore(
        SimulatedStreams(requests),
        Prefixes(requests, {}),
        SimulatedDevice(load_profile("h200", "llama3-8b")),
        options,
    )
    scheduler = make_scheduler(policy, core, None, None)  # type: ignore[arg-type]
    tree = RadixCache.create_simulated()
    theirs = SchedulePolicy(POLICIES[policy], tree, False, False, False)
    queue, processed = [], 0
    served = set(rng.sample(range(len(requests)), k=len(requests) // 4))
    for index, request in enumerate(requests):
        if index in served:  # its KV is in the cache when the others come
            core.arrive(index, request.arrival_s, request.arrival_s)
            chunk = scheduler.plan(request.arrival_s).chunks[0]
            core.waiting, core.chunked, core.computed = [], None, 0
            core.allocate(chunk.tokens, 0.0)
            core.memory.extend(index, chunk.prefix, request.prompt_tokens)
            core.memory.release(index, request.prompt_tokens, lambda tokens: 0.0)
            ids = token_ids(index, request)
            tree.insert(InsertParams(key=RadixKey(ids), value=torch.arange(len(ids))))
            processed += chunk.tokens
    for index, request in enumerate(requests):
        if index in served:
            continue
        core.arrive(index, request.arrival_s, request.arrival_s)
        queue.append(waits(index, request, processed))
        if rng.random() < 0.3:  # something is prefilled before the next one comes
            scheduler.offered()
            theirs.calc_priority(queue, processed_tokens=processed)
            if policy == "hrrn":
                scheduler._prefilled += 100
            processed += 100
    theirs.calc_priority(queue, processed_tokens=processed)
    assert [request_id(stream) for stream in scheduler.offered()] == [req.rid for req in queue]
