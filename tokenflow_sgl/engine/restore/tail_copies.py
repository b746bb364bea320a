"""Copies of a tail to the device while its head is still computed.

SGLang copies to the device what its prefix tree has on the host, and the tree takes a tail only
behind its head. Here device memory is taken for a tail beforehand, each batch is copied when it has
arrived, and the tree is given the copies with the tail (`hand_over`). Until then the memory belongs
to neither a request nor the tree: SGLang's checks are told of it (`restore_hooks`), and it is given
back when SGLang needs it or the restoration ends.

Nothing waits on the host for a copy: whatever uses the memory next waits on the device. So indices
stay on the device; to bring them to the host, or from it in the ordinary way, would wait for all
copies, and these may wait for a step that runs.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch
from sglang.srt.managers.cache_controller import CacheOperation, HiCacheAck
from sglang.srt.mem_cache.allocator.page_interleave import PageInterleavePoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.utils.common import get_device_module

from tokenflow_sgl.engine.sglang.controller import Controller, StorageFetch
from tokenflow_sgl.engine.sglang.pools import PagedAllocator
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.telemetry.sparing import Sparing

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

_ATTRIBUTE = "tokenflow_copies"


class TailCopies:
    """The device memory of one tail, and what was copied there.

    `copy` is for SGLang's I/O thread, everything else for the scheduler's.

    Args:
        tree: SGLang's.
        operation: Its fetch from the tail.
    """

    def __init__(self, tree: Tree, operation: StorageFetch) -> None:
        self._tree = tree
        self._controller = tree.cache_controller
        self._operation = operation
        self._lock = threading.Lock()
        self._slots: torch.Tensor | None = None  # on the device
        self._targets: torch.Tensor | None = None  # the same, where the copies want it
        self._copied = self._ahead = 0
        self._over = not _copies_by_page(self._controller)

    @property
    def asked(self) -> bool:
        """Whether device memory was taken, or is not to be."""
        return self._over or self._slots is not None

    @property
    def slots(self) -> torch.Tensor | None:
        """The places of its device memory."""
        return self._slots

    @property
    def held(self) -> int:
        """Tokens of device memory that these copies hold."""
        return 0 if self._slots is None else len(self._slots)

    def reserve(self, tokens: int, leave: int) -> None:
        """Take device memory for so many tokens from the tail, in whole pages; once.

        Args:
            tokens: Of the tail.
            leave: Tokens of memory that are to be left for others, else none is taken.
        """
        if self.asked or not tokens:
            return
        tokens = min(tokens, len(self._operation.host_indices))
        allocator = self._controller.mem_pool_device_allocator
        if allocator.available_size() + self._tree.evictable_size() < tokens + leave:
            return
        slots = self._allocate(tokens)
        targets = slots
        if slots is not None and self._controller.io_backend == "direct":
            targets = slots.cpu()
        with self._lock:
            self._slots, self._targets = slots, targets

    def copy(self, arrived: int) -> None:
        """Copy what has arrived of the tail, as far as there is device memory for it."""
        with self._lock:
            end = min(arrived, self.held)
            if self._over or end <= self._copied:
                return
            assert self._slots is not None and self._targets is not None
            span = slice(self._copied, end)
            try:
                # This thread begins with the first device; to leave another one's stream would
                # set that again, and take memory there.
                # Of the controller only the kind of device is known.
                get_device_module().set_device(self._slots.device)
                self._submit(self._operation.host_indices[span], self._targets[span])
            except Exception as error:
                self._over = True  # the rest is copied when it is handed over
                logger.warning(
                    "tokenflow: a copy to the device failed (%s: %s)", type(error).__name__, error
                )
                return
            self._copied = end

    def give_back(self) -> None:
        """The device memory is SGLang's again, and none is taken any more."""
        with self._lock:
            slots, self._slots, self._targets, self._over = self._slots, None, None, True
        if slots is not None:
            self._free(slots)

    def hand_over(self, request: Req) -> int:
        """Let the tree, which has the tail on the host now, have it on the device, too.

        Args:
            request: Was matched with the tree just now.

        Returns:
            Tokens that the tree has got and that were copied before.
        """
        with self._lock:
            self._over = True  # from here on nothing is copied but by `load`
        setattr(self._controller, _ATTRIBUTE, self)
        try:
            self._tree.load_back(request.best_match_node, req=request)
        finally:
            setattr(self._controller, _ATTRIBUTE, None)
        self.give_back()
        return self._ahead

    def load(self, host: torch.Tensor, node_id: int) -> torch.Tensor | None:
        """In place of the controller's `load`, of which it keeps the promise.

        Args:
            host: Slots whose KV the tree wants on the device.
            node_id: The tree's name for that, when it has ended.

        Returns:
            Device slots for them, or None: there is not enough memory.
        """
        slots, copied = self._slots, self._copied
        assert slots is not None
        held = self._operation.host_indices[: len(slots)]
        places, order = torch.sort(held)
        place = torch.searchsorted(places, host).clamp(max=len(held) - 1)
        known = places[place] == host
        index = order[place]
        missing = int((~known).sum())
        fresh = self._allocate(missing) if missing else None
        if missing and fresh is None:
            return None
        device = slots[self._there(index)]
        if fresh is not None:
            device[self._there(torch.nonzero(~known)[:, 0])] = fresh
        left = torch.nonzero(~known | (index >= copied))[:, 0]
        self._ahead = len(host) - len(left)
        if len(left):
            targets = device[self._there(left)]
            self._stream.wait_stream(get_device_module().current_stream())  # which finds them
            self._submit(host[left], targets)
        unused = torch.ones(len(slots), dtype=torch.bool)
        unused[index[known]] = False
        # Those of what was computed meanwhile.
        self._slots = slots[self._there(torch.nonzero(unused)[:, 0])]
        self._acknowledge(CacheOperation(host, device, node_id))
        return device

    def _there(self, index: torch.Tensor) -> torch.Tensor:
        """An index of the host's on the device, without waiting for it."""
        return index.to(self._controller.device, non_blocking=True)

    def _allocate(self, tokens: int) -> torch.Tensor | None:
        """Device memory for copies, behind whatever the device still does with it."""
        allocator = self._controller.mem_pool_device_allocator
        lacking = tokens - allocator.available_size()
        if lacking > 0:
            self._tree.evict_for_alloc(EvictParams(num_tokens=lacking))
        slots: torch.Tensor | None = allocator.alloc(tokens)
        fence = self._controller.load_fence_stream
        if fence is not None:
            self._stream.wait_stream(fence)
        self._stream.wait_stream(get_device_module().current_stream())
        return slots

    def _submit(self, host: torch.Tensor, device: torch.Tensor) -> None:
        controller = self._controller
        with get_device_module().stream(self._stream):
            host, device, _ = controller._move_op_indices(CacheOperation(host, device, -1))
            controller.l2_transfer_engine.submit_host_to_device(
                controller._l2_load_transfers(host, device),
                transfer_layer_id_max=controller.transfer_layer_id_max,
            )

    def _acknowledge(self, operation: CacheOperation) -> None:
        """The tree hears of the copies' end as of any load; the device waits for it by itself."""
        controller = self._controller
        done = self._stream.record_event()
        get_device_module().current_stream().wait_event(done)
        controller.ack_load_queue.append(
            HiCacheAck(
                start_event=done,
                finish_event=done,
                node_ids=operation.node_ids,
                num_tokens=len(operation.device_indices),
                num_tokens_by_pool=controller._num_tokens_by_pool(operation),
                num_bytes=controller._transfer_num_bytes(operation),
            )
        )

    def _free(self, slots: torch.Tensor) -> None:
        get_device_module().current_stream().wait_stream(self._stream)
        allocator: PagedAllocator | Any = self._controller.mem_pool_device_allocator
        page = int(allocator.page_size)
        # They are whole pages, so that SGLang need not look for each page's tokens, and wait.
        allocator.free_page_ids(slots[::page] // page)

    @property
    def _stream(self) -> Any:
        return self._controller.l2_transfer_engine.host_to_device_stream


def handing_over(controller: Controller) -> TailCopies | None:
    """The copies that the tree is being given just now."""
    found: TailCopies | None = getattr(controller, _ATTRIBUTE, None)
    return found


def _copies_by_page(controller: Controller) -> bool:
    """Whether a device page is like any other, and holds all that a host page does."""
    allocator = controller.mem_pool_device_allocator
    plain = isinstance(allocator, TokenToKVPoolAllocator | PagedTokenToKVPoolAllocator)
    return plain and not isinstance(allocator, PageInterleavePoolAllocator)
