"""The restorations under way: what SGLang fetches for them, and how each of them ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
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
from tokenflow_sgl.engine.restore.restored_request import Restoration, Stage
from tokenflow_sgl.engine.restore.tail_join import join_fetch
from tokenflow_sgl.engine.sglang.controller import StorageFetch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree


class OpenRestorations:
    """All restorations that are not joined, computed alone or dropped yet.

    Args:
        tree_cache: SGLang's prefix tree.
        chunk_size: Tokens of a prefill step at most.
        record: Is told what was restored how.

    Attributes:
        all: Of them, in the order in which they began; a view that follows what comes and goes.
        outlook: What they may expect of the device and the link.
        layer_memory: The host's memory of fetches by layers.
        needed: Tokens of device memory that steps may take soon.
    """

    def __init__(self, tree_cache: Tree, chunk_size: int, record: RestorationRecord) -> None:
        self._tree = tree_cache
        self._record = record
        self._of: dict[Any, Restoration] = {}  # by SGLang's handle of the request
        self.all: Collection[Restoration] = self._of.values()
        self.outlook = Outlook(self.all, int(tree_cache.page_size), chunk_size)
        self.layer_memory = LayerMemory(tree_cache)
        self.needed = 0
        self._paused = False

    def get(self, handle: Any) -> Restoration | None:
        """The one of a request with this handle of SGLang's; None: there is none."""
        return self._of.get(handle)

    def of(self, request: Req) -> Restoration | None:
        """The one of a request of SGLang's; None: there is none."""
        return self._of.get(request.cache_request_handle)

    def has(self, each: Restoration) -> bool:
        """Whether it is still open."""
        return self.of(each.request) is each

    @property
    def any(self) -> bool:
        """Whether there is one, or host memory of one."""
        return bool(self._of or self.layer_memory)

    @property
    def fetching(self) -> bool:
        """Whether SGLang's threads have a fetch to end, maybe one that was dropped."""
        return bool(fetches_of(self._tree.cache_controller))

    @property
    def busy(self) -> bool:
        """Whether a flush has to wait: for the threads, or for host memory that is given back."""
        return self.fetching or bool(self.layer_memory)

    def release_layers(self, agree: Callable[[int], int] = lambda number: number) -> None:
        """Give host memory of fetches by layers back that nothing uses any more.

        agree: the least of all ranks' numbers.
        """
        if self.layer_memory:
            unused = self.layer_memory.unused(fetches_of(self._tree.cache_controller))
            self.layer_memory.release(agree(unused))

    def under_way(self, request: Req) -> bool:
        """Whether something of a request may still be fetched and used."""
        each = self.of(request)
        return each is not None and each.stage is not Stage.PROBE

    def held_for(self, request: Req) -> int:
        """Tokens of device memory that a request has already, for copies of its tail."""
        each = self.of(request)
        return 0 if each is None else each.copies.held

    def leads(self, leader: Restoration) -> bool:
        """Whether one that brings others' beginning, too, still does."""
        return leader.may_lead and (self.has(leader) or leader.enters_tree)

    # ---- how they begin and end -----------------------------------------------------

    def begin(self, each: Restoration) -> None:
        """SGLang has begun its fetch, maybe in place of one of the same request."""
        self.forget(each.request)
        self._of[each.request.cache_request_handle] = each

    def forget(self, request: Req) -> None:
        """SGLang has dropped the fetch of a request."""
        each = self._of.pop(request.cache_request_handle, None)
        if each is not None:
            each.copies.give_back()
            each.ends()

    def drop(self, request: Req, reason: str | None = None) -> None:
        """The fetch of a request is of no use any more.

        Args:
            request: Any.
            reason: SGLang's, for its metric of storage hits that are not used; None: they are not
                counted, as of aborted requests.
        """
        handle, each = request.cache_request_handle, self.of(request)
        if each is None:
            return
        self.forget(request)
        info = self._tree.ongoing_prefetch.get(handle)
        if info is not None and info.operation is each.operation:  # else SGLang has dropped it
            if reason is not None:
                not_used(self._tree, handle, reason)
            self._tree.release_aborted_request(handle)

    def pause(self) -> None:
        """The engine is paused: no head goes on, so no tail is kept for one.

        What is kept would keep the caches from being flushed, and the weights may change now.
        """
        self._paused = True
        for each in list(self.all):
            if each.allocated:
                self.drop(each.request)

    def go_on(self) -> None:
        """The engine is not paused any more."""
        self._paused = False

    def keeps(self, operation: StorageFetch) -> bool:
        """A fetch of SGLang's has ended: whether its pages wait for the head."""
        each = self._of.get(operation.handle)
        if each is None or each.operation is not operation:
            return False
        each.fetched = True
        each.look()
        if each.left:
            self._record.failed()
        if self._paused or each.stage is Stage.PROBE:
            self.drop(each.request)
        return True

    def compute_alone(self, each: Restoration) -> None:
        """Compute all of a request; its link is measured still, for it may have got faster."""
        if not self.has(each):
            return
        each.step.alone = False
        self._record.alone(each, self.outlook)
        if each.fetched or each.arrived or each.tail.handed == 0:
            self.drop(each.request, RECOMPUTED)  # no batch of it is needed to measure the link
            return
        not_used(self._tree, each.request.cache_request_handle, RECOMPUTED)
        each.copies.give_back()
        each.goes(Stage.PROBE)
        each.wait.landing = math.inf
        each.tail.enough = 1  # a batch is begun as long as there is less

    def finish_layers(self, each: Restoration, loaded: int, layers: int) -> None:
        """The last layers of its prefill are launched next.

        Args:
            each: One whose lower layers are computed.
            loaded: Layers that have come from the storage.
            layers: Of the model.
        """
        if self.has(each):  # else its fetch was dropped, and all of it is computed
            if loaded:
                each.layer_fetch.by_layers.finish(each.landed)
            self._record.by_layers(each, loaded, layers, self.outlook)
            self.drop(each.request, RECOMPUTED)
        each.goes(Stage.COMPUTED)

    def break_layers_off(self, each: Restoration) -> None:
        """SGLang has taken the memory of a prefill back, whose lower layers are computed."""
        if self.has(each):
            self.drop(each.request)
        each.goes(Stage.DROPPED)

    def join(self, each: Restoration, head: int) -> bool:
        """Whether it can go on: the tail has arrived up to the head, and is joined or dropped.

        Args:
            each: One whose request was matched with the tree just now.
            head: Tokens of it that the tree has.
        """
        request = each.request
        if head >= each.end:
            self.drop(request, RECOMPUTED)  # by another request that begins like it
            return True
        # What is copied is locked until the copy has ended, and the step that is being filled
        # counts on memory that could be evicted when its first request was admitted.
        may_lock = room_of(self._tree) - head >= self.needed
        if not takes_tail(self._tree, request, may_lock):
            self.drop(request, HOST_FULL)  # rather than wait for what will not be taken
            return True
        if each.end - head > each.arrived:
            return False
        del self._of[request.cache_request_handle]
        each.goes(Stage.JOINED)
        if each.layered:
            each.layer_fetch.taken = True
        fetched = join_fetch(self._tree, request, each.operation, head, each.end, each.arrived)
        ahead = 0
        if fetched and each.copies.held and may_lock:
            tokens_in_tree(self._tree, request)  # now with its tail
            ahead = each.copies.hand_over(request)
        each.copies.give_back()
        self._record.joined(each, fetched, ahead, self.outlook)
        return True
