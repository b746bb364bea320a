"""SGLang's hooks through which restorations hear of prefetches; see `restorations`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.restore.fetch_ends import drained
from tokenflow_sgl.engine.restore.layer_fetch import take_layers
from tokenflow_sgl.engine.restore.link_thread import register_turns
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.tail_copies import handing_over
from tokenflow_sgl.engine.restore.tail_fetch import register_fetches
from tokenflow_sgl.engine.sglang.controller import Controller, StorageFetch
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.sglang.worker import WeightUpdater

_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller:HybridCacheController"
_POOL_STATS = (
    "sglang.srt.managers.scheduler_components.pool_stats_observer:SchedulerPoolStatsObserver"
)
_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater:SchedulerWeightUpdaterManager"
_ATTRIBUTE = "tokenflow_restorations"

Function = Callable[..., Any]


def register_restorations() -> None:
    """Declare the hooks, in the scheduler's process before it has a cache."""
    register_fetches()
    register_turns()
    hold(
        f"{_TREE}.check_prefetch_progress",
        _progress,
        HookType.AROUND,
        "admits a request whose head is to be computed",
        ("request",),
    )
    hold(
        f"{_TREE}._handle_prefetch_result",
        _fetched,
        HookType.AROUND,
        "keeps what has arrived until the head meets it, and enters it then",
        ("operation",),
    )
    hold(
        f"{_TREE}._drain_storage_control_queues_impl",
        _drained,
        HookType.AROUND,
        "notes which fetches have ended",
        ("n_ack_prefetch",),
    )
    hold(
        f"{_CONTROLLER}.load",
        _load,
        HookType.AROUND,
        "gives the tree the copies of a tail that are on the device already",
        ("host_indices", "priority", "node_id", "extra_pools"),
    )
    hold(
        f"{_TREE}._component_available_size",
        _available,
        HookType.AROUND,
        "evicts nothing for a tail that is on the device already",
        ("component_type",),
    )
    hold(
        f"{_POOL_STATS}.session_held_tokens",
        _held,
        HookType.AROUND,
        "tells SGLang's checks of the device memory of copies",
    )
    hold(
        f"{_UPDATER}.release_memory_occupation",
        _released,
        HookType.AROUND,
        "ends copies before the memory goes away",
        ("recv_req",),
    )


def attach_restorations(tree_cache: Tree, restorations: Restorations) -> None:
    """The hooks on this tree go to these restorations."""
    setattr(tree_cache, _ATTRIBUTE, restorations)


def restorations_of(tree_cache: Tree) -> Restorations | None:
    """The restorations that the hooks on this tree go to; None: SGLang fetches by itself."""
    found: Restorations | None = getattr(tree_cache, _ATTRIBUTE, None)
    return found


def _progress(original: Function, tree: Tree, request: Any) -> Any:
    restorations = restorations_of(tree)
    may_start = restorations.may_start(request) if restorations is not None else None
    return original(tree, request) if may_start is None else may_start


def _fetched(original: Function, tree: Tree, operation: StorageFetch) -> Any:
    restorations = restorations_of(tree)
    if restorations is not None and restorations.open.keeps(operation):
        return None
    return original(tree, operation)


def _drained(original: Function, tree: Tree, *args: Any, n_ack_prefetch: int, **kwargs: Any) -> Any:
    take_layers(tree.cache_controller, n_ack_prefetch)
    said = drained(original, tree, *args, n_ack_prefetch=n_ack_prefetch, **kwargs)
    restorations = restorations_of(tree)
    if restorations is not None:
        restorations.turns.hand_on()
    return said


def _load(
    original: Function, controller: Controller, host_indices: Any, *args: Any, **kwargs: Any
) -> Any:
    copies = handing_over(controller)
    if copies is None or kwargs.get("extra_pools"):
        return original(controller, host_indices, *args, **kwargs)
    return copies.load(host_indices, kwargs["node_id"])


def _available(original: Function, tree: Tree, component_type: Any) -> int:
    # The memory of the copies is there already: nothing is to be evicted for it.
    copies = handing_over(tree.cache_controller)
    return int(original(tree, component_type)) + (0 if copies is None else copies.held)


def _held(original: Function, observer: Any) -> int:
    restorations = restorations_of(observer.tree_cache)
    return int(original(observer)) + (
        0 if restorations is None else restorations.copy_memory.held_tokens
    )


def _released(original: Function, updater: WeightUpdater, request: Any) -> Any:
    # SGLang takes the memory away before it flushes the tree.
    tree: Any = None if updater.scheduler is None else updater.scheduler.tree_cache
    restorations = restorations_of(tree)
    if restorations is not None:
        if restorations.open.any:
            restorations.copy_memory.end()
        while restorations.open.fetching:  # a flush comes next, and fails while it is not idle
            tree.check_hicache_events()
            time.sleep(0.001)  # the threads want this process's time, too
        restorations.open.release_layers()  # no rank has a copy under way
    return original(updater, request)
