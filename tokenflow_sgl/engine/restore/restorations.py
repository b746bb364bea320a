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
from typing import Any

from sglang.srt.mem_cache.common import match_kv_cache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tokenflow_sgl.costs import TransferRate
from tokenflow_sgl.engine.restore.leader_figures import Measured
from tokenflow_sgl.engine.restore.outlook import SHORT, Outlook
from tokenflow_sgl.engine.restore.planners import GuardedPlanner, MeetingPoint
from tokenflow_sgl.engine.restore.restored_request import Restoration
from tokenflow_sgl.engine.restore.tail_fetch import mark, tail_of
from tokenflow_sgl.engine.restore.tail_join import join_fetch
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.unsupported import undisturbed_reason
from tokenflow_sgl.restoration import tokens_within

LONGEST_QUERY = 1.0
"""Seconds for which a request waits for the storage to say what it has, at most; less if computing
takes less."""
LINK_MEMORY = 3000
"""Tokens that the rate of the link to the storage is measured by: others may use it, too."""


class Restorations:
    """Those under way.

    Args:
        tree_cache: SGLang's prefix tree.
        chunk_size: Tokens of a prefill step at most.
        planner: Decides how much of a head is computed.
        recorder: Is told what was restored how.
    """

    def __init__(
        self,
        tree_cache: Any,
        chunk_size: int,
        planner: MeetingPoint | GuardedPlanner,
        recorder: Recorder,
    ) -> None:
        self._tree = tree_cache
        self._page = int(tree_cache.page_size)
        self._chunk_size = chunk_size
        self._planner = planner
        self._recorder = recorder
        self._of: dict[Any, Restoration] = {}  # by SGLang's handle of the request
        self._outlook = Outlook(self._of.values(), self._page, chunk_size)
        self._paused = False
        self.rate = TransferRate(LINK_MEMORY)

    @property
    def any(self) -> bool:
        """Whether there is one."""
        return bool(self._of)

    def begin_pass(self, measured: Measured) -> None:
        """A pass of the scheduler begins; SGLang's prefetches were looked at."""
        self._outlook.measured = measured
        ongoing = self._tree.ongoing_prefetch
        for handle, each in list(self._of.items()):
            info = ongoing.get(handle)
            if info is None or info.operation is not each.operation:
                del self._of[handle]  # dropped by SGLang
                continue
            if math.isnan(each.began):
                each.began = measured.now
            arrived = int(each.operation.completed_tokens)
            begins = each.allocated and not each.looked_at and self._outlook.on_link(each)
            if arrived != each.arrived or begins:
                self._outlook.link_moved()
            each.arrived, each.looked_at = arrived, each.allocated

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
        mark(operation, self._page, self.rate, self._outlook.measured.rate)
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
        head = self._head_of(each.request)
        chunk = self._next_chunk(each, head)
        if chunk is None:
            return True
        if chunk == 0:
            return self._join(each, head)
        each.chunk = chunk
        return True

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
        gap = each.end - each.arrived - head
        if head >= each.end:
            self.drop(each.request)  # another request's, or all computed
            return None
        if gap <= 0:
            return 0
        known = self._outlook.known
        chunk = gap if each.fetched else self._meet(each, head, gap)
        alone = chunk >= gap and not each.arrived and (known or each.fetched)
        if alone or (known and not each.fetched and self._alone(each, head, gap)):
            self._compute_alone(each)
            return None
        if known and not each.fetched:
            chunk = self._behind_others(each, head, chunk)
            each.landing = math.inf if chunk else self._outlook.now + self._outlook.fetch(each)(gap)
        if known and 0 < chunk <= self._chunk_size:
            each.tail.enough = min(each.tail.enough, each.end - head - chunk)
        return chunk

    def _compute_alone(self, each: Restoration) -> None:
        """It is faster, or nothing comes; but the link may have got faster, so it is measured."""
        self._count("computed", each.end - each.start, 0)
        if each.fetched or each.arrived:
            self.drop(each.request)
            return
        each.probe, each.chunk, each.landing = True, 0, math.inf
        each.tail.enough = 1  # a batch is begun as long as there is less

    def _meet(self, each: Restoration, head: int, gap: int) -> int:
        return self._planner.head_tokens(
            head,
            gap,
            compute=self._outlook.compute,
            fetch=self._outlook.fetch(each),
            page=self._page,
            lead=self._outlook.lead,
            wait=SHORT,
        )

    def _alone(self, each: Restoration, head: int, gap: int) -> bool:
        suffix = len(each.request.full_untruncated_fill_ids) - each.end
        return self._planner.alone(
            head,
            gap,
            each.end,
            suffix,
            compute=self._outlook.compute,
            fetch=self._outlook.fetch(each),
            page=self._page,
            lead=self._outlook.lead,
        )

    def _behind_others(self, each: Restoration, head: int, chunk: int) -> int:
        """As many of these tokens as delay none that came before and waits for its tail."""
        # One that has landed, or that was not looked at since, holds nothing up.
        landings = [
            other.landing
            for other in self._outlook.before(each)
            if not other.fetched and other.landing > self._outlook.now
        ]
        soonest = min(landings, default=math.inf)
        if math.isinf(soonest):
            return chunk
        step = min(chunk, self._chunk_size)
        within = soonest - self._outlook.now - self._outlook.lead
        fits = tokens_within(head, step, within, compute=self._outlook.compute, page=self._page)
        return chunk if fits >= step else fits

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
            self._recorder.count("restore_fetch_failures_total", 1)
        if self._paused or each.probe:
            self.drop(each.request)
        return True

    def drop(self, request: Any) -> None:
        """Its fetch is of no use any more."""
        handle = request.cache_request_handle
        each = self._of.pop(handle, None)
        if each is None:
            return
        info = self._tree.ongoing_prefetch.get(handle)
        if info is not None and info.operation is each.operation:  # else SGLang has dropped it
            self._tree.release_aborted_request(handle)

    def _join(self, each: Restoration, head: int) -> bool:
        """Whether the tail has arrived up to the head; then it was joined."""
        start, whole = each.start, each.end
        if whole - head > each.arrived:
            return False
        del self._of[each.request.cache_request_handle]
        fetched = join_fetch(self._tree, each.request, each.operation, head, whole, each.arrived)
        computed = max(whole - start - fetched, 0)
        way = "fetched" if not computed else "both" if fetched else "computed"
        self._count(way, computed, fetched)
        rate = self._outlook.measured.rate
        fetching = (whole - start) / rate if rate > 0.0 else math.inf
        single = min(self._outlook.compute(start, whole - start) or math.inf, fetching)
        if single < math.inf:
            taken = self._outlook.now - each.began
            self._recorder.count("restore_seconds_total", taken)
            self._recorder.count("restore_single_source_seconds_total", single)
        return True

    def _count(self, way: str, computed: int, fetched: int) -> None:
        self._recorder.count("restorations_total", 1, way=way)
        self._recorder.count("restored_tokens_total", computed, source="computed")
        self._recorder.count("restored_tokens_total", fetched, source="fetched")
