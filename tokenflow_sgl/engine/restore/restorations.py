"""Requests whose prefix is computed from its head while its tail is fetched from storage.

How a request goes: SGLang's prefetch for it is made one from the tail (`tail_fetch`). While that is
under way the request is admitted, and the chunks of its prefill end where the tail will have
arrived (`restoration.head_tokens`). When computing more of the head would not pay it goes back to
the queue; its head is in the prefix tree. When the tail has arrived up to the head, the fetch is
made an ordinary one, of just the pages behind the head, and SGLang does the rest: it enters them in
the tree, loads them, and computes the end of the prompt.

So what is not joined yet belongs to SGLang's prefetch, whatever becomes of the request, and what is
joined to its tree. What SGLang drops (abort, flush) is dropped here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore.copy_memory import CopyMemory
from tokenflow_sgl.engine.restore.head_chunks import HeadChunks
from tokenflow_sgl.engine.restore.leader_figures import Measured
from tokenflow_sgl.engine.restore.outlook import Outlook
from tokenflow_sgl.engine.restore.prefix_in_tree import (
    HOST_FULL,
    RECOMPUTED,
    not_used,
    takes_tail,
    tokens_in_tree,
)
from tokenflow_sgl.engine.restore.restorable import restorable
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.shared_prefix import place
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.restore.tail_fetch import mark, tail_of
from tokenflow_sgl.engine.restore.tail_join import join_fetch
from tokenflow_sgl.restoration import HeadPlanner


class Restorations:
    """Those under way.

    Args:
        tree_cache: SGLang's prefix tree.
        chunk_size: Tokens of a prefill step at most.
        planner: Decides how much of a head is computed.
        record: Is told what was restored how.
        fetch_again: Begins a fetch for a request anew.

    Attributes:
        copy_memory: What copies of tails have of the device's.
        rate: Of the link to the storage.
    """

    def __init__(
        self,
        tree_cache: Any,
        chunk_size: int,
        planner: HeadPlanner,
        record: RestorationRecord,
        fetch_again: Callable[[Any], object],
    ) -> None:
        self._tree = tree_cache
        self._page = int(tree_cache.page_size)
        self._chunk_size = chunk_size
        self._record = record
        self._fetch_again = fetch_again
        self._of: dict[Any, Restoration] = {}  # by SGLang's handle of the request
        self._outlook = Outlook(self._of.values(), self._page, chunk_size)
        self._chunks = HeadChunks(planner, self._outlook, self._page, chunk_size)
        self.copy_memory = CopyMemory(
            self._of.values(), tree_cache, self._outlook, self._chunks, chunk_size
        )
        self._paused = False
        self.rate = LatestRate()

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._of)

    def begin_pass(self, measured: Measured, needed: int, chunked: Any = None) -> None:
        """A pass of the scheduler begins; SGLang's prefetches were looked at.

        Args:
            measured: The figures of this pass.
            needed: Tokens of device memory that the next step may take.
            chunked: The request whose prompt is prefilled in part.
        """
        ongoing, moved = self._tree.ongoing_prefetch, False
        for handle, each in list(self._of.items()):
            info = ongoing.get(handle)
            if info is None or info.operation is not each.operation:
                del self._of[handle]  # dropped by SGLang
                each.copies.give_back()
                continue
            if math.isnan(each.began):
                each.began = measured.now
            arrived = int(each.operation.completed_tokens)
            moved = moved or arrived != each.arrived
            each.arrived = arrived
            if each.allocated and not each.placed:
                place(each, self._of.values(), self._page)
        self._outlook.begin_pass(measured, moved)
        for each in [each for each in self._of.values() if each.fetched]:
            if each.request is not chunked:
                self._join_early(each)
        self.copy_memory.begin_pass(needed)

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

    def watch(self, request: Any) -> None:
        """SGLang may have begun a prefetch for this request: from now on it is one of ours."""
        handle = request.cache_request_handle
        info = self._tree.ongoing_prefetch.get(handle)
        if info is None or tail_of(info.operation) is not None:
            return
        if not restorable(self._tree, request, info):
            return
        if handle in self._of:  # SGLang has dropped that one, and no pass has begun since
            self._of.pop(handle).copies.give_back()
        copies = TailCopies(self._tree, info.operation)
        mark(info.operation, self._page, self.rate, self._outlook.measured.rate, copies)
        self._of[handle] = Restoration(request, info.operation)

    # ---- a request that waits -------------------------------------------------------

    def may_start(self, handle: Any) -> bool | None:
        """Whether SGLang may admit a waiting request; None: it is none of ours."""
        each = self._of.get(handle)
        if each is None:
            return None
        if not each.allocated:
            return self._asked_long_enough(each)
        if each.probe:
            return True
        if each.leader is not None and not self._led(each, each.leader):
            return False
        if each.arrived == each.seen and self._outlook.now < each.landing < math.inf:
            return False  # as in the pass before: to look at hundreds again takes long
        each.seen = each.arrived
        head = tokens_in_tree(self._tree, each.request)
        chunk = self._next_chunk(each, head)
        if chunk is None:
            return True
        if chunk == 0:
            return self._join(each, head)
        each.chunk = chunk
        return True

    def _join_early(self, each: Restoration) -> None:
        """No more arrives: in the tree it can be evicted, here it takes host memory from others.

        Its request may not be asked for for long, while the device is full.
        """
        if each.leader is not None and self._leads(each.leader):
            return
        if not each.looked_for:
            each.looked_for = True
            head = tokens_in_tree(self._tree, each.request)
            if each.end - each.arrived <= head:
                self._join(each, head)

    def _led(self, each: Restoration, leader: Restoration) -> bool:
        """Whether the one that brings its beginning has done so; its fetch begins anew if not."""
        if self._leads(leader):
            return False
        each.leader = None
        if tokens_in_tree(self._tree, each.request) >= each.shared:
            return True
        self.drop(each.request)  # the other one was aborted, or is computed alone
        self._fetch_again(each.request)
        return False

    def _leads(self, leader: Restoration) -> bool:
        return not leader.probe and self._of.get(leader.request.cache_request_handle) is leader

    def chunk_of(self, request: Any) -> int | None:
        """Tokens of the head that this request may compute in its first chunk; None: any."""
        each = self._of.get(request.cache_request_handle)
        return None if each is None or not each.chunk else each.chunk

    def _asked_long_enough(self, each: Restoration) -> bool:
        waited = self._outlook.now - each.began
        if not waited > self._outlook.patience(each):  # nor before it was looked at once
            return False
        self.drop(each.request)
        return True

    # ---- a request whose head is being computed -------------------------------------

    def next_chunk(self, request: Any) -> int | None:
        """Tokens that the request whose prompt is prefilled in part computes next.

        Returns:
            0: none, it goes back to the queue. None: as SGLang likes, there is nothing to meet.
        """
        each = self._of.get(request.cache_request_handle)
        if each is None or each.probe:
            return None
        chunk = self._next_chunk(each, int(request.extend_end))
        each.chunk = chunk or 0
        if not chunk:
            each.looked_for = False  # what is computed of its head will be in the tree
        return chunk

    def _next_chunk(self, each: Restoration, head: int) -> int | None:
        """As `next_chunk`, behind `head` tokens; 0, too, if the tail has arrived so far."""
        if head >= each.end:
            self.drop(each.request, RECOMPUTED)  # another request's, or all computed
            return None
        if each.end - each.arrived <= head:
            return 0
        chunk = self._chunks.next(each, head)
        if chunk is None:
            self._compute_alone(each)
        elif self._outlook.known and 0 < chunk <= self._chunk_size:
            each.tail.enough = min(each.tail.enough, each.end - head - chunk)
        return chunk

    def _compute_alone(self, each: Restoration) -> None:
        """It is faster, or nothing comes; but the link may have got faster, so it is measured."""
        self._record.alone(each, self._outlook)
        if each.fetched or each.arrived:
            self.drop(each.request, RECOMPUTED)
            return
        not_used(self._tree, each.request.cache_request_handle, RECOMPUTED)
        each.copies.give_back()
        each.probe, each.chunk, each.landing = True, 0, math.inf
        each.tail.enough = 1  # a batch is begun as long as there is less

    # ---- the end --------------------------------------------------------------------

    def keeps(self, operation: Any) -> bool:
        """SGLang's fetch has ended: whether its pages wait for the head."""
        each = self._of.get(operation.handle)
        if each is None or each.operation is not operation:
            return False
        each.fetched, each.arrived = True, int(operation.completed_tokens)
        if each.left:
            self._record.failed()
        if self._paused or each.probe:
            self.drop(each.request)
        return True

    def under_way(self, request: Any) -> bool:
        """Whether something of it may still be fetched and used."""
        each = self._of.get(request.cache_request_handle)
        return each is not None and not each.probe

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
        if not takes_tail(self._tree, request):
            self.drop(request, HOST_FULL)  # rather than wait for what will not be taken
            return True
        if each.end - head > each.arrived:
            return False
        del self._of[request.cache_request_handle]
        fetched = join_fetch(self._tree, request, each.operation, head, each.end, each.arrived)
        ahead = 0
        if fetched and each.copies.held:
            tokens_in_tree(self._tree, request)  # now with its tail
            ahead = each.copies.hand_over(request)
        each.copies.give_back()
        self._record.joined(each, fetched, ahead, self._outlook)
        return True
