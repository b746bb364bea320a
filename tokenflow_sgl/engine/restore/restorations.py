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

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore.copy_memory import CopyMemory
from tokenflow_sgl.engine.restore.head_chunks import HeadChunks
from tokenflow_sgl.engine.restore.layer_ways import LayerWays
from tokenflow_sgl.engine.restore.layered_prefills import LayeredPrefills
from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.link_turns import LinkTurns
from tokenflow_sgl.engine.restore.open_restorations import OpenRestorations
from tokenflow_sgl.engine.restore.prefix_in_tree import RECOMPUTED, tokens_in_tree
from tokenflow_sgl.engine.restore.refused_fetches import RefusedFetches
from tokenflow_sgl.engine.restore.restorable import restorable
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restored_request import Restoration, Stage
from tokenflow_sgl.engine.restore.shared_prefix import place
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.restore.tail_fetch import mark, tail_of
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.restoration import HeadPlanner


class Restorations:
    """All restorations of a server, as SGLang's loop meets them from pass to pass.

    What is computed next is said by `outlook`, `HeadChunks` and `LayerWays`; what is fetched,
    copied, joined and dropped is done by `open`, `turns` and `copy_memory`.

    Args:
        tree_cache: SGLang's prefix tree.
        chunk_size: Tokens of a prefill step at most.
        planner: Decides how much is computed.
        record: Is told what was restored how.
        fetch_again: Begins a fetch for a request anew; it may be told up to which token the storage
            has its prefix.
        layers: Of the model, if its prefills can be split; else 0.
        admission: The requests that wait in the order in which they are admitted; None: first come,
            first served.

    Attributes:
        open: Those under way, and how they end.
        layered: The prefills of those that are restored by layers.
        rate: Of the link to the storage.
        turns: Of their fetches on the link.
        copy_memory: What copies of tails have of the device's.
    """

    def __init__(
        self,
        tree_cache: Tree,
        chunk_size: int,
        planner: HeadPlanner,
        record: RestorationRecord,
        fetch_again: Callable[..., object],
        layers: int = 0,
        admission: Callable[[], Sequence[Any] | None] = lambda: None,
    ) -> None:
        self._tree = tree_cache
        self._page = page = int(tree_cache.page_size)
        self._chunk_size = chunk_size
        self._fetch_again = fetch_again
        self._refused = RefusedFetches(tree_cache, fetch_again)
        self.rate = LatestRate()
        self.open = OpenRestorations(tree_cache, chunk_size, record)
        outlook, all_ = self.open.outlook, self.open.all
        self._outlook = outlook
        self._chunks = chunks = HeadChunks(planner, outlook, page, chunk_size)
        self._ways = LayerWays(tree_cache, layers, planner, self.open, chunk_size, self.rate)
        self.layered = LayeredPrefills(self.open, chunks, self._ways, chunk_size)
        self.turns = LinkTurns(tree_cache, all_, outlook, admission)
        self.copy_memory = CopyMemory(all_, tree_cache, outlook, chunks, chunk_size)

    def begin_pass(self, measured: LeaderFigures, needed: int, chunked: Req | None = None) -> None:
        """A pass of the scheduler begins; SGLang's prefetches were looked at.

        Args:
            measured: The figures of this pass.
            needed: Tokens of device memory that the next step may take.
            chunked: The request whose prompt is prefilled in part.
        """
        self._refused.begin_pass()
        ongoing, moved = self._tree.ongoing_prefetch, False
        self.open.needed = needed + self._chunk_size  # the end of one step and the next one
        for each in list(self.open.all):
            info = ongoing.get(each.request.cache_request_handle)
            if info is None or info.operation is not each.operation:
                self.open.forget(each.request)  # dropped by SGLang
                if each.tail.refused:
                    self._refused.add(each.request, each.end)
                continue
            if math.isnan(each.began):
                each.began = measured.now
            moved = each.look() or moved
            if each.stage is Stage.FOUND:
                place(each, self.open.all, self._page)
        self.turns.rank()
        self._outlook.begin_pass(measured, moved)
        for each in [each for each in self.open.all if each.fetched]:
            if each.request is not chunked:
                self._join_early(each)
        self.copy_memory.begin_pass(needed)

    def watch(self, request: Req) -> None:
        """SGLang may have begun a prefetch for this request: from now on it is one of ours."""
        handle = request.cache_request_handle
        info = self._tree.ongoing_prefetch.get(handle)
        if info is None or tail_of(info.operation) is not None:
            return
        if not restorable(self._tree, request, info):
            return
        copies = TailCopies(self._tree, info.operation)
        mark(info.operation, self._page, self.rate, self._outlook.measured.rate, copies)
        each = Restoration(request, info.operation)
        self.open.begin(each)  # SGLang may have dropped one, and no pass has begun since
        self._refused.begun(handle)
        each.tail.allocated = functools.partial(self._ways.found, each)

    # ---- a request that waits -------------------------------------------------------

    def may_start(self, handle: Any) -> bool | None:
        """Whether SGLang may admit a waiting request; None: it is none of ours."""
        each = self.open.get(handle)
        if each is None and self._refused.again(handle):
            each = self.open.get(handle)
        if each is None:
            return None
        if not each.allocated:
            return self._asked_long_enough(each)
        if each.stage is Stage.PROBE:
            return self._chunks.alone(each, tokens_in_tree(self._tree, each.request)) != 0
        if each.leader is not None and not self._led(each, each.leader):
            return False
        step = each.step
        if each.arrived == step.seen and self._outlook.now < each.wait.landing < math.inf:
            return False  # as in the pass before: to look at hundreds again takes long
        step.seen, step.alone = each.arrived, False
        head = tokens_in_tree(self._tree, each.request)
        if each.layered:
            return self.layered.may_start(each, head)
        chunk = self._next_chunk(each, head)
        if chunk is None:
            step.alone = self.open.has(each)
            return not step.alone or self._chunks.alone(each, head) != 0
        if chunk == 0:
            return self.open.join(each, head)
        step.chunk, step.head = chunk, head
        return True

    def admitted(self, request: Req) -> None:
        """Note that a request is in the next step: what was planned for it in this pass is done.

        Args:
            request: Any of SGLang's.
        """
        self.continues(request)
        self._refused.forget(request.cache_request_handle)
        each = self.open.of(request)
        if each is None:
            return
        if each.step.alone:
            self.open.compute_alone(each)
        elif each.step.chunk:
            self._look_again(each)
            self._fetch_rest(each, each.step.head + each.step.chunk)

    def _join_early(self, each: Restoration) -> None:
        """No more arrives: in the tree it can be evicted, here it takes host memory from others.

        Its request may not be asked for for long, while the device is full.
        """
        if each.leader is not None and self.open.leads(each.leader):
            return
        if not each.looked_for:
            each.looked_for = True
            head = tokens_in_tree(self._tree, each.request)
            if each.end - each.arrived <= head:
                self.open.join(each, head)

    def _look_again(self, each: Restoration) -> None:
        """What is computed of its head will be in the tree, and may be the beginning of others."""
        if each.looked_for:
            each.looked_for = False
            for other in self.open.all:
                other.looked_for = other.looked_for and other.leader is None

    def _led(self, each: Restoration, leader: Restoration) -> bool:
        """Whether the one that brings its beginning has done so; its fetch begins anew if not.

        So it does where that one leads no more: was aborted, is computed alone, or fetched in vain.
        """
        if self.open.leads(leader):
            return False
        each.leader = None
        if tokens_in_tree(self._tree, each.request) >= each.shared:
            return True
        self.open.drop(each.request)
        self._fetch_again(each.request)
        return False

    def chunk_of(self, request: Req) -> int | None:
        """Tokens of the head that this request may compute in its first chunk; None: any."""
        each = self.open.of(request)
        return None if each is None or not each.step.chunk else each.step.chunk

    def _asked_long_enough(self, each: Restoration) -> bool:
        waited = self._outlook.now - each.began
        if not waited > self._outlook.patience(each):  # nor before it was looked at once
            return False
        self.open.drop(each.request)
        return True

    # ---- a request whose head is being computed -------------------------------------

    def continues(self, request: Req) -> None:
        """Note that a request's next chunk is in the next step."""
        prefix = int(request.prefix_len)
        self._outlook.computes(prefix, int(request.extend_end) - prefix)

    def next_chunk(self, request: Req) -> int | None:
        """Tokens that the request whose prompt is prefilled in part computes next.

        Returns:
            0: none, it goes back to the queue. None: as SGLang likes, there is nothing to meet.
        """
        each, head = self.open.of(request), int(request.extend_end)
        if each is None:
            return None
        if each.stage is Stage.PROBE:
            return self._chunks.alone(each, head)
        chunk = self._next_chunk(each, head)
        each.step.chunk = chunk or 0
        self._look_again(each)
        if chunk:
            self._fetch_rest(each, head + chunk)
        if chunk is None:
            self.open.compute_alone(each)
        return chunk

    def _next_chunk(self, each: Restoration, head: int) -> int | None:
        """Tokens of the chunk behind `head`, as `next_chunk`; 0, too, if the tail is there."""
        if head >= each.end:
            self.open.drop(each.request, RECOMPUTED)  # another request's, or all computed
            return None
        if each.end - each.arrived <= head:
            return 0
        return self._chunks.next(each, head)

    def _fetch_rest(self, each: Restoration, head: int) -> None:
        """Fetch no more than what is not computed: a chunk of the head is the last one."""
        if self._outlook.known and each.step.chunk <= self._chunk_size:
            each.tail.enough = min(each.tail.enough, each.end - head)
            self._outlook.meets(each, each.end - each.arrived - head)
