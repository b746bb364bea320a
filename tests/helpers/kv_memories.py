"""Simulated KV memories of a few streams."""

from __future__ import annotations

from collections.abc import Callable

from tokenflow_sgl.lab.sim.kv_memory import KVMemory
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.traces import PrefixBlock, TraceRequest

SHARED = 40


def request(shared: tuple[int, ...] = (), own: int = 30, output: int = 100) -> TraceRequest:
    """A prompt of blocks of `SHARED` tokens and a part of its own."""
    blocks = tuple(PrefixBlock(number, SHARED) for number in shared)
    return TraceRequest(0.0, SHARED * len(shared) + own, output, prefix=blocks)


def memory(device: int, host: int, *requests: TraceRequest, **given: bool) -> KVMemory:
    """A memory of streams; by default five that share nothing."""
    return KVMemory(device, host, Prefixes(requests or (request(),) * 5, {}), **given)


def by(moment: float) -> Callable[[int], float]:
    """A link on which every copy ends then."""
    return lambda tokens: moment
