"""Fetches from HiCache's storage that begin with the last page (CacheFlow's I/O pointer).

SGLang fetches a request's pages in the order of their keys. Here the keys of an operation are
reversed when its host memory is allocated, so everything that SGLang does with it (the ranks' least
common progress, the ownership of host memory, aborts) means "from the tail". It is fetched in
smaller batches: the computed head meets the tail at the end of one.

The batches run in SGLang's I/O thread, everything else in the scheduler's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sglang.srt.managers.cache_controller import PrefetchAck
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo
from sglang.srt.plugins.hook_registry import HookType

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore.fetch_ends import fetches_of
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.sglang.controller import Controller, StorageFetch
from tokenflow_sgl.engine.sglang.hooking import hold
from tokenflow_sgl.engine.shared_clock import local_time
from tokenflow_sgl.engine.telemetry.sparing import Sparing

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

_CONTROLLER = "sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller:HybridCacheController"
_ATTRIBUTE = "tokenflow_tail"
BATCH_SECONDS = 0.006
"""Time that a batch should take: what the head may have to wait for the tail at most."""
BATCH_TOKENS = (128, 2048)
"""Tokens of the smallest and of the largest batch."""
ALL = 1 << 60

Function = Callable[..., Any]


class TailFetch:
    """One operation of SGLang's, fetched from the tail.

    Attributes:
        batch: Pages of a batch, the same on all ranks.
        copies: Of what has arrived, to the device.
        enough: Tokens from the tail after which the rest is computed: the link is free then.
        end: Behind the last token; None until the storage has said how much it has.
        refused: The storage has said it, and the host had no memory for it.
        allocated: Is told of the tokens for which host memory was allocated.
        handed: Batches that the I/O thread was told to fetch; None: all.
        told: Batches that all ranks' threads have reported.
    """

    def __init__(self, batch: int, rate: LatestRate, copies: TailCopies) -> None:
        self.batch = batch
        self.copies = copies
        self.enough = ALL
        self.end: int | None = None
        self.refused = False
        self.allocated: Callable[[int], None] | None = None
        self.handed: int | None = None
        self.told = 0
        self._rate = rate
        # Of the I/O thread: pages that it has reported, those of them that are there, and whether
        # more can come.
        self._next, self._pages, self._goes_on = 0, 0, True

    def fetch(
        self, controller: Controller, operation: StorageFetch, batches: int | None = None
    ) -> None:
        """Go on batch by batch; the ranks agree on each, so all of them report as many.

        batches: to fetch; None: to the end.
        """
        page = int(controller.page_size)
        keys, slots = operation.hash_value, operation.host_indices
        stop = len(keys) if batches is None else self._next + batches * self.batch
        for first in range(self._next, min(stop, len(keys)), self.batch):
            some = keys[first : first + self.batch]
            if operation.is_terminated() or self._pages * page >= self.enough:
                self._goes_on = False
            if self._goes_on:
                began = local_time()
                got = self._get(
                    controller, operation, some, slots[first * page : (first + len(some)) * page]
                )
                self._pages += got
                self.copies.copy(self._pages * page)
                self._goes_on = got == len(some)
                if self._goes_on:
                    # What copying takes of this thread's time is not there for the link.
                    self._rate.observe(len(some) * page, local_time() - began)
            controller.prefetch_sync_queue.put(
                PrefetchAck(
                    rid=operation.request_id,
                    completed_tokens=self._pages * page,
                    operation=operation,
                )
            )
            self._next = first + len(some)

    def _get(
        self, controller: Controller, operation: StorageFetch, keys: list[str], slots: Any
    ) -> int:
        try:
            return int(
                controller._page_transfer_kv_batch(
                    operation, keys, slots, HiCacheStorageExtraInfo(), []
                )
            )
        except Exception as error:
            logger.warning(
                "tokenflow: fetching KV failed (%s: %s); what is missing is computed",
                type(error).__name__,
                error,
            )
            return 0


def mark(
    operation: StorageFetch, page: int, rate: LatestRate, expected: float, copies: TailCopies
) -> None:
    """From now on this operation is one that is fetched from the tail.

    Args:
        operation: SGLang's, whose host memory is not allocated yet.
        page: Tokens of a page.
        rate: Is told how long the batches take.
        expected: Tokens per second of the link, the same on all ranks; NaN: unknown.
        copies: Of what arrives, to the device.
    """
    least, most = BATCH_TOKENS
    tokens = min(max(expected * BATCH_SECONDS, least), most) if expected > 0.0 else least
    set_tail(operation, TailFetch(max(int(tokens) // page, 1), rate, copies))


def set_tail(operation: StorageFetch, tail: TailFetch | None) -> None:
    """From now on it is fetched so; None: it is an ordinary one."""
    setattr(operation, _ATTRIBUTE, tail)


def unmark(operation: StorageFetch) -> None:
    """Make a fetch an ordinary one of SGLang's from now on."""
    set_tail(operation, None)


def tail_of(operation: StorageFetch) -> TailFetch | None:
    """How an operation is fetched from the tail; None: it is an ordinary one."""
    found: TailFetch | None = getattr(operation, _ATTRIBUTE, None)
    return found


def register_fetches() -> None:
    """Declare the hooks, in the scheduler's process before it has a cache."""
    hold(
        f"{_CONTROLLER}.allocate_storage_hit",
        _allocate,
        HookType.AROUND,
        "turns the order of the pages round",
    )
    hold(
        f"{_CONTROLLER}._page_transfer_with_stable_layout",
        _transfer,
        HookType.AROUND,
        "fetches in small batches, and ends where the head begins",
        ("operation",),
    )


def _allocate(
    original: Function,
    controller: Controller,
    operation: StorageFetch,
    hit_tokens: int,
    **kwargs: Any,
) -> Any:
    slots, tokens = original(controller, operation, hit_tokens, **kwargs)
    tail = tail_of(operation)
    if tail is not None:
        tail.end = int(operation.storage_start) + hit_tokens
        tail.refused = slots is None
    if slots is not None and tail is not None:
        # SGLang cuts it to what was allocated: then it is the tail that is fetched.
        operation.hash_value = operation.hash_value[::-1]
        if tail.allocated is not None:
            tail.allocated(tokens)
        fetches_of(controller)[operation] = 0
        chosen = tail_of(operation)  # maybe by layers now
        assert chosen is not None
        chosen.handed = 0
    return slots, tokens


def _transfer(original: Function, controller: Controller, operation: StorageFetch) -> Any:
    tail = tail_of(operation)
    if tail is None:
        return original(controller, operation)
    return tail.fetch(controller, operation)
