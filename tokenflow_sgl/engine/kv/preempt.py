"""Takes running streams out of the batch and keeps their KV in the prefix tree.

Drain, then release: with overlap scheduling the step in flight still computes a token
for the victim. The victim leaves the batch at once, keeps its KV until that result is
processed, and is released an iteration later. Dropping the result instead, or releasing
early, corrupts the output.

Released KV belongs to the prefix tree: still on the device until a stream needs the
space, by then on the host if HiCache is on, and found again by prefix matching.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sglang.srt.mem_cache.common import release_kv_cache

from tokenflow_sgl.engine.kv.backups import HostKeeper
from tokenflow_sgl.engine.kv.names import Names
from tokenflow_sgl.engine.kv.state_slots import leave_state
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree


class Pauser:
    """The streams that are draining or paused.

    keeper: Of copies of these on the host.
    on_release, on_released: called with each request when its KV is about to go to the tree, and
        when it has left the device's rows.
    """

    def __init__(
        self,
        tree_cache: Tree,
        on_release: Callable[[Req], None],
        on_released: Callable[[Req], None],
    ) -> None:
        self._tree_cache = tree_cache
        self._on_release = on_release
        self._on_released = on_released
        self.draining: list[Any] = []
        self.paused: dict[Any, None] = {}  # an ordered set
        self.keeper = HostKeeper(tree_cache)
        self._names = Names()

    def preempt(self, victims: list[Req], running_batch: ReqBatch, inflight: set[Req]) -> None:
        """Take `victims` out of `running_batch`; those in `inflight` results drain first."""
        if not victims:
            return
        running_batch.filter_batch(reqs_to_exclude=victims)
        running_batch.batch_is_full = False
        for request in victims:
            if request in inflight:
                self.draining.append(request)
            else:
                self._release(request)

    def finish_draining(self, inflight: Callable[[], set[Req]]) -> list[Any]:
        """Release what has drained. Returns requests that ended while they drained.

        inflight: the requests of results in flight; called only if a stream drains.
        """
        if not self.draining:
            return []
        flying = inflight()
        ended, still = [], []
        for request in self.draining:
            if request.finished():
                ended.append(request)  # by its last result; SGLang has released it
            elif request in flying:
                still.append(request)
            else:
                self._release(request)
        self.draining = still
        return ended

    def drop_draining(self) -> None:
        """Release the draining without keeping their KV (the weights may change now)."""
        for request in self.draining:
            if not request.finished():
                self._release(request, keep=False)
        self.draining = []

    def hold(self, request: Req) -> None:
        """The engine itself has taken this request's KV away: it is paused, too."""
        self.paused[request] = None
        self._names.add(request)
        # As SGLang does with what it retracts: it may be looked for in the storage anew.
        request.storage_prefetch_retry_attempts = 0
        request.storage_prefetch_last_match_len = None
        request.staged_prefetch_plan = None
        self._on_released(request)

    def resume(self, requests: Iterable[Req]) -> None:
        """Note that these paused requests run again."""
        for request in requests:
            if request in self.paused:
                del self.paused[request]
                self._names.discard(request)
                self.keeper.give_up(request)

    def named(self, rid: str) -> list[Any]:
        """Draining and paused requests whose id begins with `rid`, as SGLang names them."""
        draining = [request for request in self.draining if request.rid.startswith(rid)]
        return [*draining, *self._names.beginning_with(rid)]

    def _release(self, request: Req, keep: bool = True) -> None:
        checkpoint = keep
        if keep:
            self._on_release(request)
        if keep and self._tree_cache.supports_mamba() and not request.skip_radix_cache_insert:
            # A release would take over the state of a request that has ended; one that goes on
            # leaves a copy in the tree, and gives its own back.
            leave_state(self._tree_cache, request)
            checkpoint = False
        release_kv_cache(request, self._tree_cache, checkpoint=checkpoint)
        if checkpoint and not request.skip_radix_cache_insert:
            self.keeper.keep(request, request.last_node)
        self.lose(request)
        if keep:
            # Paused is not retracted: a client's meta_info counts what the engine threw away.
            request.retraction_count -= 1
        self.hold(request)

    @staticmethod
    def lose(request: Req) -> None:
        """Give back a paused stream's row: to resume, its KV is looked for, or computed again."""
        request.reset_for_retract()
        if request.return_logprob and request.logprob.input_token_logprobs_val is not None:
            # The prompt's log probabilities are out. Left as it is, the start index would cap
            # the prefix match at the prompt and recompute every output token.
            request.logprob_start_len = -1
