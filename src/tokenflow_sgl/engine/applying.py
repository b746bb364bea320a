"""SGLang's scheduler that carries out what was decided: preempts, writes, loads, resumes."""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.engine.penalties import rebuild_rows
from tokenflow_sgl.engine.requests import TrackingScheduler
from tokenflow_sgl.engine.steps import loaded_tokens
from tokenflow_sgl.engine.tracing import trace
from tokenflow_sgl.engine.writing import Writer
from tokenflow_sgl.policy import Decision, Phase
from tokenflow_sgl.policy.stress import DECODE_TARGET_STEPS


class ApplyingScheduler(TrackingScheduler):
    """Moves streams in and out of the batch; `TokenFlowScheduler` decides which."""

    tf_writer: Writer

    # ---- what there is --------------------------------------------------------------

    def _tf_free(self) -> int:
        """Device KV tokens that can be allocated: free, or in the tree and locked by nobody."""
        free: int = self.token_to_kv_pool_allocator.available_size()
        return free + int(self.tree_cache.evictable_size())

    def _tf_promised(self) -> int:
        """Tokens that the prefill under way still needs."""
        chunked = self.chunked_req
        return 0 if chunked is None else max(int(chunked.seqlen - chunked.prefix_len), 0)

    def _tf_inflight(self) -> set[Any]:
        """Requests with a result that is launched and not processed."""
        return {req for batch, _ in self.result_queue for req in batch.reqs}

    def update_running_batch(self, batch: Any) -> Any:
        """Skip a decode step whose memory is on its way, instead of throwing streams out for it.

        KV of draining streams, and what is being copied to or from the host, is locked for a few
        steps. SGLang knows nothing of it: it would retract every other stream, and end the last
        one with "out of memory".
        """
        if (
            not batch.is_empty()
            and not batch.check_decode_mem()
            and self._tf_memory_is_coming(batch)
        ):
            return None
        return super().update_running_batch(batch)

    def _tf_memory_is_coming(self, batch: Any) -> bool:
        """Whether memory that is locked now can be evicted once streams have drained or copies end.

        Copies of what the batch itself locks free nothing: to wait for those would only hold the
        retraction up that SGLang has to do anyway.
        """
        if self.tf_pauser.draining:
            return True
        if not self.enable_hierarchical_cache:
            return False
        computing = {*batch.reqs, self.chunked_req} - {None}
        # What several of them share is counted for each: then SGLang retracts, at worst.
        locked = sum(int(req.kv.cache_protected_len) for req in computing)
        return int(self.tree_cache.protected_size()) > locked

    def _tf_preempt(self, decision: Decision, running_batch: Any) -> None:
        if not decision.preempt:
            return
        running = set(running_batch.reqs)
        victims = []
        for preemption in decision.preempt:
            req = self.tf_table.request(preemption.slot)
            if (
                req is None
                or req not in running
                or req is self.chunked_req
                or req.finished()
                or req.to_finish is not None
                or not self.tf_table.preemptible[preemption.slot]
            ):
                continue
            running.discard(req)
            victims.append(req)
            self.tf_table.move(req, Phase.DRAINING, self.tf_clock.now)
            self.tf_recorder.preempted(preemption.cause)
            trace(req, "paused", cause=preemption.cause.value)
        self.tf_pauser.preempt(victims, running_batch, self._tf_inflight())

    def _tf_load(self, decision: Decision, running_batch: Any) -> None:
        wanted = [
            req
            for req in map(self.tf_table.request, decision.load)
            if req is not None and req in self.tf_pauser.paused and req.to_finish is None
        ]
        chunked = self.chunked_req
        computing = {*running_batch.reqs, *self.tf_pauser.draining, *self._tf_inflight()}
        running = [*computing, *([chunked] if chunked is not None else [])]
        # Beside it the running streams must have room for their next tokens.
        reserve = (len(running) + 1) * max(DECODE_TARGET_STEPS, self.page_size)
        room = self._tf_free() - self._tf_promised() - reserve
        started = self.tf_loader.start(wanted, running, room)
        for req in started.direct:
            self.tf_table.ready[self.tf_table.slot(req)] = True
        if started.tokens:
            self.tf_table.move(self.tf_loader.request, Phase.LOADING, self.tf_clock.now)
            self.tf_recorder.loaded_ahead(started.tokens)
            trace(self.tf_loader.request, "loading", tokens=started.tokens)

    def _tf_started(self, batch: Any) -> None:
        """Streams of a new prefill batch run from now on."""
        decoding = set(batch.decoding_reqs or ())
        resumed = []
        for req in batch.reqs:
            if req in decoding or req not in self.tf_table:
                continue
            if req in self.tf_pauser.paused:
                loaded = loaded_tokens(req)
                recomputed = len(req.full_untruncated_fill_ids) - int(req.prefix_len)
                self.tf_recorder.resumed(recomputed, loaded, resident=req.prefix_len - loaded)
                trace(req, "resumed", recomputed=recomputed, loaded=loaded)
            self.tf_writer.taken_up(req)
            if req.output_ids:
                resumed.append(req)
            if self.tf_table.phase[self.tf_table.slot(req)] != Phase.RUNNING:
                self.tf_table.move(req, Phase.RUNNING, self.tf_clock.now)
        self.tf_pauser.resume(batch.reqs)
        for req in resumed:
            self.tf_paused_time.end(req)
        if resumed:
            rebuild_rows(batch, resumed, overlap=self.enable_overlap)
