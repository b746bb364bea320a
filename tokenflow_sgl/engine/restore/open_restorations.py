"""The restorations under way, and their ends: joined, computed alone, dropped."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tokenflow_sgl.engine.restore.fetch_ends import fetches_of
from tokenflow_sgl.engine.restore.layer_fetch import LayerMemory
from tokenflow_sgl.engine.restore.outlook import Outlook
from tokenflow_sgl.engine.restore.prefix_in_tree import (
    HOST_FULL,
    RECOMPUTED,
    not_used,
    room_of,
    takes_tail,
    tokens_in_tree,
)
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.tail_join import join_fetch


class OpenRestorations:
    """Those under way.

    Args:
        tree_cache: SGLang's prefix tree.
        chunk_size: Tokens of a prefill step at most.
        record: Is told what was restored how.
    """

    def __init__(self, tree_cache: Any, chunk_size: int, record: RestorationRecord) -> None:
        self._tree = tree_cache
        self._page = int(tree_cache.page_size)
        self._chunk_size = chunk_size
        self._record = record
        self._of: dict[Any, Restoration] = {}  # by SGLang's handle of the request
        self._outlook = Outlook(self._of.values(), self._page, chunk_size)
        self._layer_memory = LayerMemory(tree_cache)
        self._paused = False
        self._needed = 0  # tokens of device memory that steps may take soon

    @property
    def any(self) -> bool:
        """Whether there is one, or host memory of one."""
        return bool(self._of or self._layer_memory)

    @property
    def fetching(self) -> bool:
        """Whether SGLang's threads have a fetch to end, maybe one that was dropped."""
        return bool(fetches_of(self._tree.cache_controller))

    @property
    def busy(self) -> bool:
        """Whether a flush has to wait: for the threads, or for host memory that is given back."""
        return self.fetching or bool(self._layer_memory)

    def release_layers(self, agree: Callable[[int], int] = lambda number: number) -> None:
        """Give host memory of fetches by layers back that nothing uses any more.

        agree: the least of all ranks' numbers.
        """
        if self._layer_memory:
            unused = self._layer_memory.unused(fetches_of(self._tree.cache_controller))
            self._layer_memory.release(agree(unused))

    def under_way(self, request: Any) -> bool:
        """Whether something of it may still be fetched and used."""
        each = self._of.get(request.cache_request_handle)
        return each is not None and not each.probe

    def held_for(self, request: Any) -> int:
        """Tokens of device memory that it has already, for copies of its tail."""
        each = self._of.get(request.cache_request_handle)
        return 0 if each is None else each.copies.held

    def _leads(self, leader: Restoration) -> bool:
        open_ = self._of.get(leader.request.cache_request_handle) is leader
        return leader.may_lead and (open_ or leader.enters_tree)

    def pause(self) -> None:
        """The engine is paused: no head goes on, so no tail is kept for one.

        What is kept would keep the caches from being flushed, and the weights may change now.
        """
        self._paused = True
        for each in list(self._of.values()):
            if each.allocated:
                self.drop(each.request)

    def go_on(self) -> None:
        """The engine is not paused any more."""
        self._paused = False

    def _compute_alone(self, each: Restoration) -> None:
        """It is faster, or nothing comes; but the link may have got faster, so it is measured."""
        if each.request.cache_request_handle not in self._of:
            return
        each.alone = False
        self._record.alone(each, self._outlook)
        if each.fetched or each.arrived or each.tail.handed == 0:
            self.drop(each.request, RECOMPUTED)  # no batch of it is needed to measure the link
            return
        not_used(self._tree, each.request.cache_request_handle, RECOMPUTED)
        each.copies.give_back()
        each.probe, each.landing = True, math.inf
        each.tail.enough = 1  # a batch is begun as long as there is less

    def keeps(self, operation: Any) -> bool:
        """SGLang's fetch has ended: whether its pages wait for the head."""
        each = self._of.get(operation.handle)
        if each is None or each.operation is not operation:
            return False
        each.fetched = True
        each.look()
        if each.left:
            self._record.failed()
        if self._paused or each.probe:
            self.drop(each.request)
        return True

    def drop(self, request: Any, reason: str | None = None) -> None:
        """Its fetch is of no use any more.

        Args:
            request: Any.
            reason: SGLang's, for its metric of storage hits that are not used; None: they are not
                counted, as of aborted requests.
        """
        handle = request.cache_request_handle
        each = self._of.pop(handle, None)
        if each is None:
            return
        each.copies.give_back()
        info = self._tree.ongoing_prefetch.get(handle)
        if info is not None and info.operation is each.operation:  # else SGLang has dropped it
            if reason is not None:
                not_used(self._tree, handle, reason)
            self._tree.release_aborted_request(handle)

    def _join(self, each: Restoration, head: int) -> bool:
        """Whether it can go on: the tail has arrived up to the head, and is joined or dropped."""
        request = each.request
        if head >= each.end:
            self.drop(request, RECOMPUTED)  # by another request that begins like it
            return True
        # What is copied is locked until the copy has ended, and the step that is being filled
        # counts on memory that could be evicted when its first request was admitted.
        may_lock = room_of(self._tree) - head >= self._needed
        if not takes_tail(self._tree, request, may_lock):
            self.drop(request, HOST_FULL)  # rather than wait for what will not be taken
            return True
        if each.end - head > each.arrived:
            return False
        del self._of[request.cache_request_handle]
        if each.layered:
            each.layer_fetch.taken = True
        fetched = join_fetch(self._tree, request, each.operation, head, each.end, each.arrived)
        ahead = 0
        if fetched and each.copies.held and may_lock:
            tokens_in_tree(self._tree, request)  # now with its tail
            ahead = each.copies.hand_over(request)
        each.copies.give_back()
        self._record.joined(each, fetched, ahead, self._outlook)
        return True
