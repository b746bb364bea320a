"""Copies a stream's KV to the host where HiCache waits for an eviction (`write_back`).

With `write_through` HiCache copies every node as it is inserted, and keeps the copy as long as the
node is on the device. With `write_back` it copies a node when its device memory is needed, and the
scheduler's thread waits for that copy. In return the host drops copies of what is on the device
too, when it needs their memory. So copies of streams are started here before they are needed, by
the call with which SGLang itself starts one: it locks the node on the device until the copy has
landed, which SGLang looks after in every pass, whatever the policy. Evicting a copied node frees
its memory at once.

An eviction with `write_back` ends with a wait for all copies that are under way. Those that hold a
lock cannot be of anything that was evicted, so it need not wait for them. Where windows or states
are evicted, too, SGLang waits in the midst of it, and is left to do so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import HostLock, PathNode, Tree

_TREE = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache"
_evicting: list[Tree] = []
"""The trees that evict now: one at most, as each process has a single scheduler."""


def register_backups() -> None:
    """Declare the hooks, in the scheduler's process before it has a cache."""
    for name in ("evict", "evict_for_alloc"):
        hold(f"{_TREE}.{name}", _evict, HookType.AROUND, "an eviction is told from other waits")
    hold(
        f"{_TREE}.writing_check",
        _wait,
        HookType.AROUND,
        "an eviction does not wait for copies of what it leaves in place",
        ("write_back",),
    )
    hold(
        f"{_TREE}.on_release",
        _released,
        HookType.AFTER,
        "what a request leaves in the tree is copied before it is evicted",
        ("req", "checkpointed"),
    )


def _released(result: None, tree: Tree, req: Req, *, checkpointed: bool) -> None:
    """The tree has a request's KV, and no request locks it: sooner or later it is evicted.

    Not of a session's, which names nodes of its own, nor of recurrent states.
    """
    if not (checkpointed and copies_at_eviction(tree)):
        return
    if req.session is None and not tree.supports_mamba():
        back_up(tree, req.last_node)


def copies_at_eviction(tree: Tree) -> bool:
    """Whether HiCache copies nothing before it evicts it, so that we do."""
    return tree.cache_controller is not None and bool(tree.is_write_back)


def uncopied(tree: Tree, node: Any) -> list[PathNode]:
    """The nodes from the root to this one whose KV has no copy on the host."""
    (path,) = tree.tree_core.collect_path_info([node])
    return [each for each in path if not tree.is_backuped(each.node_id)]


def tokens_of(nodes: list[PathNode]) -> int:
    """KV tokens of these nodes."""
    return sum(each.path_end - each.path_start for each in nodes)


def back_up(tree: Tree, node: Any) -> int:
    """Start to copy what from the root to this node has no copy; nothing waits for it.

    The host drops copies that it can do without to make room, but none of this path.

    Returns:
        The tokens that are copied.
    """
    copied, locks = _copied_and_locked(tree, node)
    _unlock(tree, locks)
    return copied


class HostKeeper:
    """Copies of paused streams: the host keeps them until these run again.

    SGLang's tree drops copies of what is on the device in the order in which they were made, but
    for those of leaves. So it would drop copies of paused streams, which are about to leave the
    device, as soon as those of running ones, and evicting them would wait for another copy. A lock
    keeps them. Where the host has nothing else to drop, the locks give way: a copy that is lost is
    made, or computed, again, and a stream without a copy can only be computed.
    """

    def __init__(self, tree_cache: Tree) -> None:
        self._tree_cache = tree_cache
        self._locks: dict[Any, list[HostLock]] = {}

    @property
    def busy(self) -> bool:
        """Whether the tree may not be thrown away, as copies are locked."""
        return bool(self._locks)

    def keep(self, request: Req, node: Any) -> None:
        """A paused stream has gone to the tree, and ends at this node: what has no copy gets one.

        Where HiCache has copied it already, the host keeps it anyway.
        """
        tree = self._tree_cache
        if not copies_at_eviction(tree):
            return
        _, locks = _copied_and_locked(tree, node)
        if self._locks and uncopied(tree, node):
            _unlock(tree, locks)
            self.clear()
            _, locks = _copied_and_locked(tree, node)
        self._locks[request] = locks

    def give_up(self, request: Req) -> None:
        """A paused stream runs again, or has ended."""
        _unlock(self._tree_cache, self._locks.pop(request, []))

    def clear(self) -> None:
        """All copies can be dropped again."""
        for request in list(self._locks):
            self.give_up(request)


def _copied_and_locked(tree: Tree, node: Any) -> tuple[int, list[HostLock]]:
    """Copy the path to a node; returns how many tokens, and locks on the copies of the path.

    If the host has no room for a node, those behind it are not copied either: they could not be
    found without it.
    """
    copied, locks = 0, []
    (path,) = tree.tree_core.collect_path_info([node])
    for each in path:
        if not tree.is_backuped(each.node_id):
            copied += tree._execute_and_commit_kv_backup(BackupKV(node_ids=[each.node_id]))
            if not tree.is_backuped(each.node_id):
                break
        locks.append(tree.inc_host_lock_ref(each.node_id))
    return copied, locks


def _unlock(tree: Tree, locks: list[HostLock]) -> None:
    for lock in locks:
        tree.dec_host_lock_ref(lock.node_id, lock.to_dec_params())


def _evict(original: Callable[..., Any], tree: Tree, *args: Any, **kwargs: Any) -> Any:
    _evicting.append(tree)
    try:
        return original(tree, *args, **kwargs)
    finally:
        _evicting.pop()


def _wait(
    original: Callable[..., None], tree: Tree, write_back: bool = False, **kwargs: Any
) -> None:
    if write_back and _evicting and len(tree.tree_components) == 1:
        under_way = tree.ongoing_write_through.values()
        if all(each.lock_params is not None for each in under_way):
            return
    original(tree, write_back=write_back, **kwargs)
