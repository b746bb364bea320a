"""Keeps the recurrent states of paused streams, and makes places for them on the device.

SGLang takes a place whenever it keeps a state in the prefix tree, and ends the server if it finds
none: it counts three for each stream that runs, its own, the one it began with and the one it
leaves. What is being copied to the host cannot be evicted before the copy is acknowledged. Pauses
leave so many states to be copied that on a slow link the copies can hold all places.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree

_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"


def register_states() -> None:
    """Declare the hook, in the scheduler's process before it has a cache."""
    hold(
        f"{_TREE}.evict_for_alloc",
        _evict,
        HookType.AROUND,
        "waits for copies to the host that hold all places for states",
        ("params",),
    )


def leave_state(tree: Tree, request: Req) -> None:
    """Leave a copy of a stream's state in the tree, and its KV with it, before it gives its own up.

    Where no place can be made for the copy, both are computed again, from the last state that the
    tree has of it: others hold all of them for a few steps, as what drains or is loaded does.
    """
    places = tree.req_to_token_pool.mamba_allocator
    if not places.schedulable_available_size():
        tree.evict_for_alloc(EvictParams(num_tokens=0, mamba_num=1))
        if not places.schedulable_available_size():
            return
    request.refresh_fill_ids()
    tree.checkpoint(request, up_to=request.owned_kv_len())
    if request.kv.cache_protected_len:
        copy_left_out(tree, request.last_node)


def copy_left_out(tree: Tree, node: Any) -> None:
    """Copy the state that a paused stream has left at `node`, if SGLang has left it out."""
    if tree.cache_controller is None or tree.is_write_back:
        return
    kv, others = tree.tree_core.build_backup_spec(node)
    if others and not kv.numel():
        tree.backup_node_for_write_back(node)
        # It waits for copies of KV alone.
        tree.writing_check(write_back=True)


def _evict(original: Callable[..., Any], tree: Tree, params: Any, **kwargs: Any) -> Any:
    if not params.mamba_num:
        return original(tree, params, **kwargs)
    places = tree.req_to_token_pool.mamba_allocator
    wanted = places.schedulable_available_size() + params.mamba_num
    found = original(tree, params, **kwargs)
    lacking = wanted - places.schedulable_available_size()
    if lacking > 0 and tree.ongoing_write_through:
        # All ranks have begun the same copies, and lack the same places.
        tree.writing_check(write_back=True)
        found = original(tree, EvictParams(mamba_num=lacking), **kwargs)
    return found
