"""Takes running streams of a decode server out of the batch; their KV is kept on the host.

A decode server has no prefix tree that keeps KV, and could not compute it anew. So a stream is
paused as SGLang retracts one there: all of its KV is copied to the host, which the scheduler's
thread waits for, and given back to the device when it is resumed. DeepSeek V4 SGLang retracts
without a copy; a stream that is paused has one all the same (`compressed_copies`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang.srt.managers.schedule_batch import release_req
from sglang.srt.mem_cache.common import (
    backup_kv_cache,
    discard_kv_cache_backup,
    dsv4_needs_rebootstrap,
)
from sglang.srt.runtime_context import get_disagg

from tokenflow_sgl.engine.book import Book
from tokenflow_sgl.engine.decode_server.next_drafts import keep_of_batch, keep_of_relay
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.decode import RebootstrappedReq
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler


class DecodePauser(Pauser):
    """The streams that are draining or paused.

    Args:
        scheduler: SGLang's, with its memory.
        book: Is told where streams stand.
        capacity: Tokens that paused streams may have on the host, where SGLang sets no limit.
        most: Streams that may be paused there at once, for their windows and states.

    Attributes:
        capacity: As given.
        retraction_loses: Whether SGLang keeps no copy of what it retracts itself.
    """

    def __init__(
        self,
        scheduler: LiveScheduler,
        book: Book,
        capacity: int,
        most: float = math.inf,
    ) -> None:
        super().__init__(scheduler.tree_cache, lambda request: None, book.pauses)
        self._scheduler = scheduler
        self._book = book
        self.capacity, self._most = capacity, most
        self.retraction_loses = bool(dsv4_needs_rebootstrap(scheduler.token_to_kv_pool_allocator))
        self._accepted = self._kept = self._leaving = 0

    def begin(self, running: Sequence[Req]) -> None:
        """A pass begins: no stream has been accepted in it.

        running: What SGLang may have to retract, which it ends if the host has no room for it.
        """
        self._accepted = sum(map(self._paged, self.draining))
        self._leaving = len(self.draining)
        self._kept = max(map(self._paged, running), default=0)

    def accepts(self, request: Req) -> bool:
        """Whether the host has room for its KV.

        Beside what leaves the device before it, and the longest stream that runs.
        """
        wanted = self._paged(request)
        if self._accepted + wanted + self._kept > self._room or self._leaving >= self._places:
            return False
        self._accepted += wanted
        self._leaving += 1
        return True

    @property
    def may_pause(self) -> bool:
        """Whether the host could take one more stream, as long as the longest that runs."""
        return self._accepted + 2 * self._kept <= self._room and self._leaving < self._places

    @property
    def _places(self) -> float:
        """Streams that the host can still take, whatever their length."""
        return math.inf if _backup() == "host_pool" else self._most - len(self.paused)

    @property
    def _room(self) -> int:
        """Tokens that the host can still take."""
        if _backup() == "host_pool":
            return int(self._tree_cache.cache_controller.mem_pool_host.available_size())
        return self.capacity - sum(map(self._paged, self.paused))

    def _paged(self, request: Req) -> int:
        """Tokens of the pages that hold its KV, and a page that it may begin until it is copied."""
        page: int = self._scheduler.page_size
        return (int(request.seqlen) // page + 2) * page

    def preempt(self, victims: list[Req], running_batch: ReqBatch, inflight: set[Req]) -> None:
        """Take `victims` out of `running_batch`; those in `inflight` results drain first."""
        if not self._scheduler.enable_overlap:
            keep_of_batch(running_batch, victims)
        super().preempt(victims, running_batch, inflight)

    def drop_draining(self) -> None:
        """The weights may change now: no KV is kept, neither on the device nor on the host."""
        for request in self.draining:
            if not request.finished():
                self._give_back(request)
                self._computed_anew(request)
        self.draining = []
        for request in list(self.paused):
            self.resume([request])
            self.discard(request)
            self._computed_anew(request)

    def discard(self, request: Req) -> None:
        """The host's copy is not needed any more."""
        if request.kv.retraction_backup is not None:
            discard_kv_cache_backup(request, self._tree_cache, _backup())

    def _release(self, request: Req, keep: bool = True) -> None:
        assert keep, "what is not kept is dropped all at once"
        if not self._save(request):
            self._stays(request)
            return
        if self._scheduler.enable_overlap:
            keep_of_relay(self._scheduler.future_map, request)
        self._give_back(request)
        # Paused is not retracted: a client's meta_info counts what the engine threw away.
        request.retraction_count -= 1
        self.hold(request)

    def _stays(self, request: Req) -> None:
        """The host has no room for its KV: it goes on with the row that it has."""
        self._scheduler.waiting_queue.append(request)
        self._book.runs(request)

    def _computed_anew(self, request: RebootstrappedReq) -> None:
        """Send a stream whose KV is gone to a prefill server, as SGLang does after a retraction."""
        if request.output_ids:
            request.pd_rebootstrap_forced_output_id = request.output_ids.pop()
        request.pd_rebootstrap_in_progress = True
        request.time_stats.set_retract_time()
        self._scheduler.disagg_decode_prealloc_queue.hold_rebootstrap(request)

    def _save(self, request: Req) -> bool:
        """Copy it to the host; whether there was room."""
        scheduler = self._scheduler
        memory = scheduler.req_to_token_pool, scheduler.token_to_kv_pool_allocator
        if self.retraction_loses:
            request.offload_kv_cache(*memory)
            return True
        return bool(backup_kv_cache(request, self._tree_cache, *memory, _backup()))

    def _give_back(self, request: Req) -> None:
        scheduler = self._scheduler
        release_req(
            req=request,
            remaing_req_count=0,
            req_to_token_pool=scheduler.req_to_token_pool,
            token_to_kv_pool_allocator=scheduler.token_to_kv_pool_allocator,
            tree_cache=self._tree_cache,
            hisparse_coordinator=None,
            offload_kv=False,
        )


def _backup() -> str:
    """Where SGLang keeps KV of retracted requests: cpu_tensor or host_pool."""
    backend: str = get_disagg().disaggregation_decode_retraction_backup
    return backend
