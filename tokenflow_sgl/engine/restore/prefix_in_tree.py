"""What SGLang's prefix tree has of a request that waits, and whether a tail can come behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV

from tokenflow_sgl.engine.kv.backups import uncopied
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree

RECOMPUTED = "recomputed"
"""Reason of storage hits that are not used, in SGLang's metric: they are computed, as that is
sooner."""
HOST_FULL = "host_capacity"
"""Another one, of SGLang's own."""


def tokens_in_tree(tree: Tree, request: Req) -> int:
    """Tokens of a request that are on the device or, behind those, on the host.

    Matches it with the tree, as SGLang does before it is admitted.
    """
    request.refresh_fill_ids()
    ids = request.full_untruncated_fill_ids
    limit = request._compute_max_prefix_len(len(ids))
    match_kv_cache(request, tree, ids, max_prefix_len=limit)
    return int(request.prefix_len) + int(request.host_hit_length)


def room_of(tree: Tree) -> int:
    """Tokens of device memory that SGLang can take for a step."""
    return int(tree.token_to_kv_pool_allocator.available_size()) + int(tree.evictable_size())


def takes_tail(tree: Tree, request: Req, may_lock: bool) -> bool:
    """Whether the tree will take a tail behind what it has of a request that was just matched.

    With write-through it takes none behind KV without a copy on the host. There is none if the host
    was full when the head was computed; then there is another try. All ranks see the same memory.

    may_lock: the device has memory for the next step, too, while what is copied is locked.
    """
    node = request.best_match_node
    if tree.is_write_back or tree.is_root(node) or tree.is_backuped(node):
        return True
    if not may_lock:
        return False
    path = [each.node_id for each in uncopied(tree, node)]
    tree._execute_and_commit_kv_backup(BackupKV(node_ids=path))
    return bool(tree.is_backuped(node))


def not_used(tree: Tree, handle: Any, reason: str) -> None:
    """Tell SGLang's metrics that nothing more of a request's storage hit will be used."""
    tree._finish_storage_prefetch(handle, fulfilled_tokens=0, reason=reason)


def keep_hits(tree: Tree, handle: Any, admit: Callable[[], None]) -> None:
    """Admit a head: of the request's storage hit SGLang still knows all that is not used so far."""
    hits = tree._storage_prefetch_hit_remaining_by_reqid
    left = hits.pop(handle, None)
    admit()
    if left is not None:
        hits[handle] = left
