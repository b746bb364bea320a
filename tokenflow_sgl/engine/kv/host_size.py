"""Sizes the host's pools of KV where no option does, and says what they take.

SGLang lowers the ratio of host to device until all ranks' pools fit, and all agree on the lowest.
It is told here what to aim at, and how much of the machine's memory is for this rank's replica: to
SGLang each replica is alone. A decode server's pools, or tensors, are sized in the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace

import torch
from sglang.srt.mem_cache import hicache_auto_size
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.pool_host.base import ranks_per_host
from sglang.srt.plugins.hook_registry import HookType
from sglang.srt.runtime_context import get_context, get_disagg, get_memory

from tokenflow_sgl.engine.host_memory import (
    RESERVE,
    HostRoom,
    aimed_ratio,
    host_room,
    replicas,
)
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.pools import CacheParams, CompressedPool, DraftPlan
from tokenflow_sgl.engine.sglang.server import ResolvedOptions, ServerArgs
from tokenflow_sgl.host_pool import GB, HOST_RATIO

logger = logging.getLogger(__name__)

_SIZES = "sglang.srt.mem_cache.hicache_auto_size"
_BUILDER = "sglang.srt.mem_cache.kv_cache_builder"
_SOURCE = "tokenflow.host_size"


def register_sizes(server_args: ServerArgs) -> None:
    """Declare the hooks, in the scheduler's process before it has any pool.

    SGLang's settings are there already: what a decode server aims at is set among them.
    """
    hold(
        f"{_SIZES}:_estimate_hicache_bytes",
        _bytes_on_device,
        HookType.AROUND,
        "knows how much DeepSeek V4 keeps on the device",
        ("params", "draft_plan"),
    )
    hold(
        f"{_BUILDER}:auto_size_hicache",
        _sized,
        HookType.AROUND,
        "host memory by what the machine has, and a line that says how much",
        ("params", "draft_plan", "enabled"),
    )
    if server_args.disaggregation_mode == "decode" and get_memory().hicache_ratio is None:
        # Unset, it would do for single retracted requests: more is kept on the host here.
        _settings().override(_SOURCE, hicache_ratio=HOST_RATIO)


def _bytes_on_device(
    original: Callable[..., int], params: CacheParams, draft_plan: DraftPlan | None
) -> int:
    pool = params.token_to_kv_pool_allocator.get_kvcache()
    if not isinstance(pool, DeepSeekV4TokenToKVPool):
        return original(params, draft_plan)
    drafts = params.mtp_draft_device_pools
    if draft_plan is not None and draft_plan.mode == "sidecar":
        drafts = draft_plan.device_pools
    beside = sum(_bytes_of_parts(each) * pool.size // each.size for each in drafts)
    return _bytes_of_parts(pool) + int(beside)


def _bytes_of_parts(pool: CompressedPool) -> int:
    """Of a pool of DeepSeek V4: its compressed KV, indexers, windows and states."""
    infos = pool.get_contiguous_buf_infos(), pool.get_state_buf_infos()
    return sum(int(size) for _, sizes, _ in infos for size in sizes)


@contextmanager
def _sized(
    original: Callable[..., AbstractContextManager[None]],
    params: CacheParams,
    draft_plan: DraftPlan | None,
    *,
    enabled: bool,
) -> Iterator[None]:
    """Around the making of all pools."""
    tensors = not enabled and get_disagg().disaggregation_mode == "decode"
    device_bytes = 0
    if enabled or tensors:
        try:
            device_bytes = hicache_auto_size._estimate_hicache_bytes(params, draft_plan)
        except ValueError as error:  # pools of a kind that SGLang does not know the size of
            logger.debug("host KV: %s", error)
    with ExitStack() as pools:
        if not device_bytes:
            pools.enter_context(original(params, draft_plan, enabled=enabled))
            yield
            return
        room = _room(params.token_to_kv_pool_allocator.device)
        if get_memory().hicache_host_memory_fraction is not None:
            _aim(device_bytes, room)
        try:
            pools.enter_context(original(params, draft_plan, enabled=True))
        except ValueError as error:
            raise UnsupportedError(_too_little(room)) from error
        began = time.monotonic()
        yield
        taken = _taken(device_bytes, tensors=tensors)
        logger.info("%s", said(taken, device_bytes, room, time.monotonic() - began))


def _room(device: str | torch.device) -> HostRoom:
    """Of this machine. No accelerators are shared where the device is the processor."""
    room = host_room()
    return replace(room, devices=0) if torch.device(device).type == "cpu" else room


def _settings() -> ResolvedOptions:
    settings: ResolvedOptions = get_context()
    return settings


def _replicas() -> int:
    return replicas(_settings().server_args)


def _aim(device_bytes: int, room: HostRoom) -> None:
    """Tell SGLang what to aim at; it takes less where that does not fit."""
    whole, count = get_memory().hicache_host_memory_fraction, _replicas()
    ratio = aimed_ratio(device_bytes, room, ranks_per_host() * count, whole)
    _settings().override(_SOURCE, hicache_ratio=ratio, hicache_host_memory_fraction=whole / count)


def _taken(device_bytes: int, *, tensors: bool) -> int:
    """Bytes on the host of each rank; of tensors these are the most."""
    memory = get_memory()
    if memory.hicache_size and not tensors:
        return int(memory.hicache_size * GB)
    return int(memory.hicache_ratio * device_bytes)


def host_ratio() -> float | None:
    """KV that the host has room for over the device's, when there are pools; None: by size."""
    memory = get_memory()
    return None if memory.hicache_size else float(memory.hicache_ratio)


def said(taken: int, device_bytes: int, room: HostRoom, seconds: float) -> str:
    """The line of a start: what a rank takes of what was free, and how long that took."""
    free = "an unknown amount" if room.free is None else _size(room.free)
    ranks = ranks_per_host() * _replicas()
    return (
        f"host KV: {_size(taken)} per rank on {ranks} rank{'s' * (ranks > 1)} of this machine, "
        f"{taken / device_bytes:.2f} times the device's, of {free} free; made in {seconds:.1f} s"
    )


def _too_little(room: HostRoom) -> str:
    free = "an unknown amount" if room.free is None else _size(room.free)
    away = (
        ""
        if get_disagg().disaggregation_mode == "decode"
        else (", or start with --tokenflow-hicache off, which computes their KV again")
    )
    return (
        f"KV of paused streams has no room in host memory: {free} is free here, of which SGLang "
        f"leaves {_size(RESERVE)}, and every machine of the server needs more; free some, raise "
        f"the container's limit{away}"
    )


def _size(size: float) -> str:
    return f"{size / GB:,.1f} GB" if size >= GB / 10 else f"{size / 1e6:,.2f} MB"
