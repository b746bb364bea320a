"""HiCache's host pool with room beside each copy, and the hooks that say which copy goes on.

What SGLang's pool promises stays its own: how much is free, when a request fails, that nothing is
handed out or freed twice. Only which of the free pages serve is ours. SGLang asks for so many slots
and says no more; so the function that backs up a node of the prefix tree is wrapped, and says which
node that is and which one its tokens follow. Other slots, as for what comes from a storage, are
asked for by other threads, too, and continue nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import get_ident
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.pool_host.base import HostKVCache
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.offload.block_groups import GROUP_TOKENS, Pages
from tokenflow_sgl.offload.copy_room import CopyRoom

_INPUTS = "sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler:_mha_host_inputs"
_BACKUP = "sglang.srt.mem_cache.unified_radix_cache:UnifiedRadixCache._execute_kv_backup"


@checked
class RoomyHostPool(HostKVCache):  # type: ignore[misc]
    """To be mixed into one of SGLang's pools of plain pages."""

    _continuing: tuple[int, int, int] | None = None

    @overrides("all slots are free")
    def clear(self) -> None:
        """All pages are free, and nothing is set aside."""
        with self.lock:
            super().clear()
            self.free_slots = torch.empty(0, dtype=torch.int64)
            page = self.logical_page_size
            self._room = CopyRoom(self.logical_size // page, max(GROUP_TOKENS // page, 1))

    @overrides("what is set aside counts as free")
    def available_size(self) -> int:
        """Slots of the pages that can be taken, those that are set aside among them."""
        return self._room.available * int(self.logical_page_size)

    def all_free_slots(self) -> torch.Tensor:
        """Their numbers, for our checks."""
        with self.lock:
            return self._slots(self._room.free_pages())

    @contextmanager
    def continuing(self, node: int, parent: int) -> Iterator[None]:
        """What this thread asks for next is for a node's KV, which goes on where its parent's ends.

        Args:
            node: Its number in the prefix tree.
            parent: That of the node before it, or of the tree's root.
        """
        self._continuing = get_ident(), node, parent
        try:
            yield
        finally:
            self._continuing = None

    @overrides("which slots serve")
    def alloc(self, need_size: int) -> torch.Tensor | None:
        """Whole pages for so many tokens, shape (need_size,), or None."""
        pages, rest = divmod(need_size, self.logical_page_size)
        assert not rest, "The requested size should be a multiple of the page size."
        with self.lock:
            if pages > self._room.available:
                return None
            asking = self._continuing
            if asking is not None and asking[0] == get_ident() and pages:
                self._continuing = None
                slots = self._slots(self._room.continue_copy(*asking[1:], pages))
            else:
                slots = self._slots(self._room.take(pages))
            assert not self.slot_used[slots].any(), "Double-alloc detected."
            self.slot_used[slots] = True
            return slots

    @overrides("merges them")
    def free(self, indices: torch.Tensor) -> int:
        """Take whole pages back, in any order; returns their slots."""
        slots = indices.cpu()
        pages = slots[:: self.logical_page_size].numpy() // self.logical_page_size + 1
        with self.lock:
            assert torch.equal(self._slots(pages), slots), "Whole pages are freed."
            assert self.slot_used[slots].all(), "Double-free detected."
            self._room.give(pages)
            self.slot_used[slots] = False
        return len(slots)

    def _slots(self, pages: Pages) -> torch.Tensor:
        """Those of pages, which the book counts from 1."""
        first = (pages - 1) * self.logical_page_size
        return torch.from_numpy((first[:, None] + np.arange(self.logical_page_size)).ravel())


@cache
def with_room(pool_class: type) -> type:
    """The same pool with room beside its copies."""
    return type(f"Roomy{pool_class.__name__}", (RoomyHostPool, pool_class), {})


def register_room() -> None:
    """Declare the hooks, in the scheduler's process before it has a pool."""
    hold(_INPUTS, _chosen, HookType.AFTER, "puts a host pool with room beside its copies in place")
    hold(_BACKUP, _backed_up, HookType.AROUND, "which node's KV the host's slots are asked for")


def check_room(tree_cache: Any) -> None:
    """Make sure that the host pool has room beside its copies.

    Raises:
        UnsupportedError: It is of another kind, or one of several that are kept together.
    """
    controller = tree_cache.cache_controller
    if controller is None:
        return  # nothing is copied
    pools = [type(entry.host_pool) for entry in controller.mem_pool_host.entries]
    if len(pools) > 1 or not issubclass(pools[0], RoomyHostPool):
        raise UnsupportedError(
            "--tokenflow-host-room does not work with SGLang's "
            f"{', '.join(each.__name__ for each in pools)}: only a pool of plain pages of "
            "attention heads is served; leave the option out."
        )


def _chosen(
    result: tuple[type, Any, dict[str, Any]], *_args: Any, **_kwargs: Any
) -> tuple[type, Any, dict[str, Any]]:
    pool_class, *more = result
    return (with_room(pool_class), *more)


def _backed_up(
    original: Callable[..., Any], tree: Any, node_id: int, *args: Any, **kwargs: Any
) -> Any:
    (path,) = tree.tree_core.collect_path_info([node_id])
    pool: RoomyHostPool = tree.cache_controller.mem_pool_host.anchor_entry.host_pool
    with pool.continuing(node_id, path[-1].parent_id):
        return original(tree, node_id, *args, **kwargs)
