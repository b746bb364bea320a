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

import itertools
import math
from collections.abc import Callable
from typing import Any

from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore.copy_memory import CopyMemory
from tokenflow_sgl.engine.restore.head_chunks import HeadChunks
from tokenflow_sgl.engine.restore.leader_figures import Measured
from tokenflow_sgl.engine.restore.outlook import Outlook
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.shared_prefix import leader_of
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.restore.tail_fetch import mark, tail_of
from tokenflow_sgl.engine.restore.tail_join import join_fetch
from tokenflow_sgl.engine.unsupported import undisturbed_reason
from tokenflow_sgl.restoration import HeadPlanner

LONGEST_QUERY = 1.0
"""Seconds for which a request waits for the storage to say what it has, at most; less if computing
takes less."""


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

    def begin_pass(self, measured: Measured, needed: int) -> None:
        """A pass of the scheduler begins; SGLang's prefetches were looked at.

        Args:
            measured: The figures of this pass.
            needed: Tokens of device memory that the next step may take.
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
                self._place(each)
        self._outlook.begin_pass(measured, moved)
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
        operation = info.operation
        if info.host_indices is not None or operation.pool_transfers:
            return
        if tuple(self._tree.tree_components) != (ComponentType.FULL,):
            return  # windows and states do not come page by page
        if operation.prefix_keys is not None or request.positional_embed_overrides is not None:
            return
        if undisturbed_reason(request) is not None:
            return
        if handle in self._of:  # SGLang has dropped that one, and no pass has begun since
            self._of.pop(handle).copies.give_back()
        copies = TailCopies(self._tree, operation)
        mark(operation, self._page, self.rate, self._outlook.measured.rate, copies)
        self._of[handle] = Restoration(request, operation)

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
        head = self._head_of(each.request)
        chunk = self._next_chunk(each, head)
        if chunk is None:
            return True
        if chunk == 0:
            return self._join(each, head)
        each.chunk = chunk
        return True

    def _place(self, each: Restoration) -> None:
        """Fetch only what no other one brings."""
        each.placed = True
        before = itertools.takewhile(lambda other: other is not each, self._of.values())
        each.leader, each.shared = leader_of(each, before, self._page)
        if each.leader is not None:
            each.tail.enough = max(each.end - each.shared, 0)

    def _led(self, each: Restoration, leader: Restoration) -> bool:
        """Whether the one that brings its beginning has done so; its fetch begins anew if not."""
        if self._of.get(leader.request.cache_request_handle) is leader and not leader.probe:
            return False
        each.leader = None
        if self._head_of(each.request) >= each.shared:
            return True
        self.drop(each.request)  # the other one was aborted, or is computed alone
        self._fetch_again(each.request)
        return False

    def chunk_of(self, request: Any) -> int | None:
        """Tokens of the head that this request may compute in its first chunk; None: any."""
        each = self._of.get(request.cache_request_handle)
        return None if each is None or not each.chunk else each.chunk

    def _asked_long_enough(self, each: Restoration) -> bool:
        request, now = each.request, self._outlook.now
        missing = len(request.full_untruncated_fill_ids) - int(request.prefix_len)
        patience = min(
            self._outlook.compute(int(request.prefix_len), missing) or math.inf, LONGEST_QUERY
        )
        if not now - each.began > patience:  # nor before it was looked at for the first time
            return False
        self.drop(request)
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
        return chunk

    # ---- both -----------------------------------------------------------------------

    def _next_chunk(self, each: Restoration, head: int) -> int | None:
        """The same, behind the first `head` tokens; 0, too, if the tail has arrived so far."""
        if head >= each.end:
            self.drop(each.request)  # another request's, or all computed
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
            self.drop(each.request)
            return
        each.copies.give_back()
        each.probe, each.chunk, each.landing = True, 0, math.inf
        each.tail.enough = 1  # a batch is begun as long as there is less

    def _head_of(self, request: Any) -> int:
        """Tokens of it that are in the prefix tree."""
        request.refresh_fill_ids()
        ids = request.full_untruncated_fill_ids
        limit = request._compute_max_prefix_len(len(ids))
        match_kv_cache(request, self._tree, ids, max_prefix_len=limit)
        return int(request.prefix_len) + int(request.host_hit_length)

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

    def drop(self, request: Any) -> None:
        """Its fetch is of no use any more."""
        handle = request.cache_request_handle
        each = self._of.pop(handle, None)
        if each is None:
            return
        each.copies.give_back()
        info = self._tree.ongoing_prefetch.get(handle)
        if info is not None and info.operation is each.operation:  # else SGLang has dropped it
            self._tree.release_aborted_request(handle)

    def _join(self, each: Restoration, head: int) -> bool:
        """Whether the tail has arrived up to the head; then it was joined."""
        if each.end - head > each.arrived:
            return False
        request = each.request
        del self._of[request.cache_request_handle]
        fetched = join_fetch(self._tree, request, each.operation, head, each.end, each.arrived)
        ahead = 0
        if fetched and each.copies.held:
            self._head_of(request)  # now with its tail
            ahead = each.copies.hand_over(request)
        each.copies.give_back()
        self._record.joined(each, fetched, ahead, self._outlook)
        return True
