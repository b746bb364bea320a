"""The body of the decode server of a disaggregated pair.

A stream waits from its arrival until it has memory here; its KV comes then. Until it is in the
batch it runs already, in the sense that it holds memory, and cannot be preempted. The decision
comes before SGLang gives memory to what was retracted and to what arrives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.runtime_context import get_disagg, get_memory

from tokenflow_sgl.contract import Phase, Preempt
from tokenflow_sgl.engine.body.unified import StreamMemory, UnifiedBody, host_pool_tokens
from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.decode_server.compressed_copies import copy_with
from tokenflow_sgl.engine.decode_server.decode_loads import DecodeLoads, DecodeTransfers
from tokenflow_sgl.engine.decode_server.decode_pauser import DecodePauser
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.queue_index import QueueIndex
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.telemetry.applied import trace
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.sampling import Effort
from tokenflow_sgl.engine.unsupported import undisturbed_without_prefill
from tokenflow_sgl.lifecycle import Missing
from tokenflow_sgl.lifecycle.actuator import Action


@dataclass(frozen=True, slots=True)
class DecodeMemory(StreamMemory):
    """The device's memory of a decode server, as a policy sees it.

    Attributes:
        loads: Copies back that overlap with decode steps; None: KV is in tensors, whose copies are
            waited for.
    """

    loads: DecodeLoads | None


class DecodeBody(UnifiedBody):
    """The streams of a decode server."""

    pauser: DecodePauser
    mirrored = False
    without_hicache = "off (paused KV is kept as SGLang keeps that of retracted requests)"

    def __init__(
        self,
        scheduler: LiveScheduler,
        book: Book,
        memory: DecodeMemory,
        pauser: DecodePauser,
        extensions: Extensions,
        recorder: Recorder,
    ) -> None:
        """Build the body of a decode server; arguments as of `UnifiedBody`."""
        super().__init__(scheduler, book, memory, pauser, extensions, recorder)
        self._loads = memory.loads
        self._away: frozenset[Any] = frozenset()  # that are not to be given memory in this pass
        self._own_reserve: int | None = None
        """Tokens that SGLang reserves for each request to decode on, as the operator asked for."""

    # ---- the memory -----------------------------------------------------------------

    @property
    def writes(self) -> bool:
        """No copy is made before a pause."""
        return False

    @property
    def promised(self) -> int:
        """SGLang allocates all that a transfer needs before it begins."""
        return 0

    def host_tokens(self) -> int:
        """KV tokens that paused streams may have on the host, in a pool or in tensors."""
        return super().host_tokens() or self.pauser.capacity

    @property
    def queue(self) -> QueueIndex:
        """What waits in any of SGLang's queues for a place in the batch."""
        prealloc = self._prealloc
        before = [each.req for each in prealloc.queue]
        return self._queue.look([*before, *prealloc.held_rebootstrap_reqs, *self.untouchable])

    @property
    def untouchable(self) -> list[Any]:
        """Requests with memory whose KV is on its way, or that are to join the batch."""
        scheduler = self._scheduler
        coming = [each.req for each in scheduler.disagg_decode_transfer_queue.queue]
        return [*coming, *scheduler.waiting_queue]

    def skips_decode(self, batch: ReqBatch, now: float) -> bool:
        """Never: SGLang's loop has no step without a batch there."""
        return False

    # ---- the verbs ------------------------------------------------------------------

    def begin(self, running_batch: ReqBatch) -> None:
        """A pass begins, with this batch running."""
        super().begin(running_batch)
        self.pauser.begin(running_batch.reqs)

    def accepts(self, action: Action) -> bool:
        """Whether SGLang's requests, batches and host memory allow this action on a stream."""
        if not super().accepts(action):
            return False
        return not isinstance(action, Preempt) or self.pauser.accepts(self._req(action.slot))

    def missing(self, slot: int) -> Missing:
        """No load overlaps with decode steps before its stream has its memory."""
        return Missing()

    def offer(
        self, slots: Sequence[int] | None, recompute: frozenset[int], hidden: frozenset[int]
    ) -> None:
        """Choose what may be given memory now: paused streams, and those that wait for theirs."""
        table = self._table
        paused = dict.fromkeys(req for req in self.pauser.paused if req.to_finish is None)
        self.chosen = slots is not None
        self._away = frozenset(map(table.request, hidden))
        if slots is None:
            self.offered = [req for req in sorted(paused, key=table.rank) if req not in self._away]
            return
        waiting = {each.req for each in self._prealloc.queue}
        chosen = map(table.request, (slot for slot in slots if slot not in hidden))
        self.offered = [req for req in chosen if req in paused or req in waiting]

    @property
    def busy(self) -> bool:
        """Whether something runs, is about to, or is to be admitted beside the policy's choice."""
        return bool(super().busy or self.untouchable)

    # ---- streams resume, and join ---------------------------------------------------

    def admit_arrivals(self, admit: Callable[[], None], effort: Effort) -> None:
        """Paused streams that were chosen come first; then SGLang sees what else was."""
        with effort:
            self._resume_chosen()
            hidden = self._hide_unchosen()
        try:
            admit()
        finally:
            with effort:
                self._show_again(hidden)
        with effort:
            self._given_memory()

    def join(self, running_batch: ReqBatch, join: Callable[[Any], Any], effort: Effort) -> Any:
        """Streams whose KV is here run from now on; what is still on its way stays out."""
        scheduler = self._scheduler
        with effort:
            held = self._hide_coming(running_batch)
        batch = join(running_batch)
        scheduler.waiting_queue.extend(held)
        for req in () if batch is None else batch.reqs:
            self._book.runs(req)  # also one whose KV was computed again
        return batch

    def _resume_chosen(self) -> None:
        """Give paused streams that were chosen their memory and their KV, as far as there is room.

        SGLang takes nothing else in while something that it has retracted waits; so none is left
        in its queue.
        """
        prealloc, paused = self._prealloc, self.pauser.paused
        self._reserve()
        prealloc.retracted_queue = [req for req in self.offered if req in paused]
        if not prealloc.retracted_queue:
            return
        resumed = prealloc.resume_retracted_reqs()
        prealloc.retracted_queue = []
        for req in resumed:
            self.pauser.resume([req])
            self._book.runs(req)
            self._recorder.resumed(0, req.seqlen - 1, resident=0)
            trace(req, "resumed", recomputed=0, loaded=req.seqlen - 1)
        self._scheduler.waiting_queue.extend(resumed)

    def _reserve(self) -> None:
        """While streams can be paused, what each needs next is reserved, not what it may need.

        Where the host is full, SGLang ends streams for which it finds no memory.
        """
        prealloc = self._prealloc
        if self._own_reserve is None:
            self._own_reserve = int(prealloc.num_reserved_decode_tokens)
        reserve = self._own_reserve
        if self.chosen and self.pauser.may_pause:
            reserve = min(reserve, self.growth.headroom)
        prealloc.num_reserved_decode_tokens = reserve

    def _hide_unchosen(self) -> tuple[list[Any], list[Any]] | None:
        """SGLang gives memory only to those of its queue that were chosen, in their order.

        What has failed or cannot be given memory yet it sees as well, since it polls those. Where
        the policy does not decide, paused streams that found no memory go before all of it, as
        retracted ones do.

        Returns:
            SGLang's queue as it was, and what of it is hidden; None: all of it is to be seen.
        """
        prealloc = self._prealloc
        some_wait = any(req in self.pauser.paused for req in self.offered)
        decides = self.chosen or some_wait
        if not (decides or any(each.req in self._away for each in prealloc.queue)):
            return None
        interval = get_disagg().disaggregation_decode_polling_interval
        if (getattr(self._scheduler, "polling_count", 0) + 1) % interval == 0:
            # Or those that become ready in this very pass would be given memory unchosen.
            prealloc._resolve_pending_reqs()
            prealloc._update_handshake_waiters()
        place = {req: number for number, req in enumerate(self.offered)}
        whole, table = prealloc.queue, self._table
        free, chosen, held, unready = [], [], [], []
        for each in whole:
            if each.req not in table:
                free.append(each)
            elif not each.waiting_for_input or each.req.finished_reason is not None:
                unready.append(each)
            elif each.req in place or not (decides or each.req in self._away):
                chosen.append(each)
            else:
                held.append(each)
        if decides:
            chosen.sort(key=lambda each: place[each.req])
        prealloc.queue = [*free, *chosen, *unready]
        return whole, held

    def _show_again(self, hidden: tuple[list[Any], list[Any]] | None) -> None:
        """SGLang's queue has all of its requests again, in their order; `hidden`: what was."""
        if hidden is None:
            return
        whole, held = hidden
        prealloc = self._prealloc
        there = {id(each) for each in (*prealloc.queue, *held)}
        known = set(map(id, whole))
        new = [each for each in prealloc.queue if id(each) not in known]
        prealloc.queue = [*(each for each in whole if id(each) in there), *new]

    def _given_memory(self) -> None:
        """What waited and has memory now runs, in the sense of this body."""
        table = self._table
        for req in self.untouchable:
            if req in table and table.phases.is_in(table.slot(req), Phase.WAITING):
                table.move(req, Phase.RUNNING, self._book.clock.now)

    def _hide_coming(self, running_batch: ReqBatch) -> list[Any]:
        """Requests whose KV is still on its way: SGLang does not take them into the batch."""
        scheduler = self._scheduler
        alone, loads = running_batch.is_empty(), self._loads
        coming = {} if loads is None else loads.coming(alone=alone)
        held = [req for req in scheduler.waiting_queue if req in coming]
        if held:
            scheduler.waiting_queue = [req for req in scheduler.waiting_queue if req not in coming]
        return held

    # ---- requests change places -----------------------------------------------------

    def newest(self, queue: Sequence[Req]) -> Any:
        """The request that has arrived last, with SGLang's first queue of arrivals."""
        arrived = self._prealloc.queue
        return arrived[-1].req if arrived else None

    def undisturbed(self, req: Req) -> str | None:
        """What is resumed without a prefill is excluded, too."""
        return undisturbed_without_prefill(req) or super().undisturbed(req)

    @property
    def loses_retracted(self) -> bool:
        """Whether SGLang loses what it retracts: of DeepSeek V4 it keeps no copy of KV."""
        return self.pauser.retraction_loses

    def held_batches(self) -> list[Any]:
        """What waits for its KV to be computed again."""
        held = self._prealloc.held_rebootstrap_reqs
        return [ScheduleBatch(reqs=held)] if held else []

    def take_aborted(self) -> list[Any]:
        """Aborted requests that waited for their KV to be computed again, with all their output."""
        prealloc = self._prealloc
        held = prealloc.held_rebootstrap_reqs
        prealloc.held_rebootstrap_reqs = [req for req in held if req.to_finish is None]
        aborted = [req for req in held if req.to_finish is not None]
        for req in aborted:
            if (last := req.pd_rebootstrap_forced_output_id) is not None:
                req.output_ids.append(last)
        return aborted

    def releases(self, req: Req) -> None:
        """An aborted stream leaves no KV on the host, and no copy to memory that it gives back."""
        if self._loads is not None:
            self._loads.end(req)
        self.pauser.discard(req)

    # ---- the engine is paused, or idle ----------------------------------------------

    def engine_pauses(self) -> None:
        """Copies to memory that may be given back end."""
        if self._loads is not None:
            self._loads.settle()

    def engine_paused(self, *, retracted: bool, now: float) -> None:
        """What waits for its KV to be computed again waits as what arrives does."""
        super().engine_paused(retracted=retracted, now=now)
        for req in self._prealloc.held_rebootstrap_reqs:
            if req in self._table:
                self._book.waits(req)

    def idle(self, *, ignore_waiting: bool) -> bool:
        """Paused streams' only KV is on the host: the caches cannot be flushed before they end."""
        return super().idle(ignore_waiting=ignore_waiting) and not self.pauser.paused

    @property
    def _prealloc(self) -> Any:
        return self._scheduler.disagg_decode_prealloc_queue


def decode_body(
    scheduler: LiveScheduler,
    book: Book,
    memory: StreamMemory,
    extensions: Extensions,
    recorder: Recorder,
) -> DecodeBody:
    """The body of a decode server, with what pauses and resumes there; as of `UnifiedBody`."""
    tree, total = scheduler.tree_cache, int(scheduler.max_total_num_tokens)
    # Of tensors, for which there is no size.
    tokens = host_pool_tokens(scheduler) or int(get_memory().hicache_ratio * total)
    most = math.inf
    if memory.pools.window_total:
        page = int(scheduler.page_size)
        window = (-(-int(scheduler.sliding_window_size) // page) + 1) * page
        most = int(tokens / total * memory.pools.window_total) // window
    pauser, loads = DecodePauser(scheduler, book, tokens, most), None
    if pauser.retraction_loses:
        worker = scheduler.draft_worker
        drafts = None if worker is None else worker.primary_draft_kv_pool
        copy_with(scheduler.token_to_kv_pool_allocator.get_kvcache(), drafts)
    watch = memory.watch
    if get_disagg().disaggregation_decode_retraction_backup == "host_pool":
        loads = DecodeLoads(tree, book.clock)
        watch = DecodeTransfers(loads, recorder)
    own = DecodeMemory(memory.pools, memory.writer, memory.loader, watch, loads)
    return DecodeBody(scheduler, book, own, pauser, extensions, recorder)
