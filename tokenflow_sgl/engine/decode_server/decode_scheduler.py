"""SGLang's scheduler of a decode server with the policy at its decision point.

The decision comes before SGLang gives memory to what was retracted and to what arrives. As in
`engine.scheduler` each method calls SGLang's own and adds one thing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.runtime_context import get_disagg

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.decode_server.compressed_copies import copy_with
from tokenflow_sgl.engine.decode_server.decode_actuator import DecodeActuator
from tokenflow_sgl.engine.decode_server.decode_loads import DecodeLoads, DecodeTransfers
from tokenflow_sgl.engine.decode_server.decode_pauser import DecodePauser
from tokenflow_sgl.engine.flags import HOST_RATIO
from tokenflow_sgl.engine.requests import TrackingScheduler
from tokenflow_sgl.engine.scheduler import TokenFlowScheduler
from tokenflow_sgl.engine.telemetry.applied import trace
from tokenflow_sgl.engine.unsupported import undisturbed_without_prefill
from tokenflow_sgl.engine.view import View


class TokenFlowDecodeScheduler(TokenFlowScheduler):
    """What `--scheduler tokenflow` puts in place with `--disaggregation-mode decode`."""

    tf_pauser: DecodePauser
    disagg_decode_prealloc_queue: Any  # SGLang's own, as the next two are
    disagg_decode_transfer_queue: Any
    waiting_queue: list[Any]
    sliding_window_size: int
    tf_without_hicache = "off (paused KV is kept as SGLang keeps that of retracted requests)"
    tf_own_reserve: int | None = None
    """Tokens that SGLang reserves for each request to decode on, as the operator asked for."""
    tf_loads: DecodeLoads | None = None
    """Loads that overlap with decode steps; None: KV is in tensors, whose copies are waited for."""

    def init_schedule_policy(self) -> None:
        """Build the policy, and what pauses and resumes here."""
        super().init_schedule_policy()
        self.tf_pauser = DecodePauser(
            self,
            self._tf_paused,
            self._tf_stays,
            self._tf_computed_anew,
            self._tf_host_tokens(),
            self._tf_host_streams(),
        )
        if self.tf_pauser.retraction_loses:
            worker = self.draft_worker
            drafts = None if worker is None else worker.primary_draft_kv_pool
            copy_with(self.token_to_kv_pool_allocator.get_kvcache(), drafts)
        if get_disagg().disaggregation_decode_retraction_backup == "host_pool":
            self.tf_loads = DecodeLoads(self.tree_cache, self.tf_clock)
            self.tf_transfers = DecodeTransfers(self.tf_loads, self.tf_recorder)
        self.tf_actuator = DecodeActuator(
            self, self.tf_table, self.tf_pauser, self.tf_writer, self.tf_loader
        )
        self.tf_view = View(
            self, self.tf_table, self.tf_actuator, self.tf_clock, self.tf_timer, self.tf_transfers
        )

    def _tf_newest(self, queue: list[Any]) -> Any:
        arrived = self.disagg_decode_prealloc_queue.queue
        return arrived[-1].req if arrived else None

    def _tf_undisturbed(self, req: Any) -> str | None:
        return undisturbed_without_prefill(req) or super()._tf_undisturbed(req)

    def _tf_host_tokens(self) -> int:
        """Where SGLang keeps tensors of no fixed number there: as many as HiCache would take."""
        ratio = self.server_args.hicache_ratio or HOST_RATIO  # the size is of a pool
        return super()._tf_host_tokens() or int(ratio * self.max_total_num_tokens)

    def _tf_host_streams(self) -> float:
        """Streams whose windows HiCache would take; inf: they have none of their own."""
        total, page = self.tf_actuator.pools.window_total, self.page_size
        if not total:
            return math.inf
        window = (-(-self.sliding_window_size // page) + 1) * page
        share = self._tf_host_tokens() / self.max_total_num_tokens
        return int(share * total) // int(window)

    # ---- one iteration --------------------------------------------------------------

    def process_decode_queue(self) -> None:
        """Account what the last step delivered, decide, and let SGLang admit what was chosen."""
        with self.tf_effort:
            self._tf_begin(self.running_batch, self.last_batch)
            self._tf_decide(self.running_batch)
            self._tf_resume()
        with self._tf_chosen():
            super().process_decode_queue()
        with self.tf_effort:
            now, table = self.tf_clock.now, self.tf_table
            for req in self.tf_actuator.untouchable:
                if req in table and table.phases.is_in(table.slot(req), Phase.WAITING):
                    table.move(req, Phase.RUNNING, now)

    def get_next_disagg_decode_batch_to_run(self, running_batch: Any) -> Any:
        """Time the step that SGLang chooses."""
        plan = super().get_next_disagg_decode_batch_to_run(running_batch)
        self._tf_launched(plan)
        return plan

    def update_running_batch(self, batch: Any) -> Any:
        """SGLang's own: its loop has no step without a batch here."""
        return super(TokenFlowScheduler, self).update_running_batch(batch)

    def _tf_resume(self) -> None:
        """Give paused streams that were chosen their memory and their KV, as far as there is room.

        SGLang takes nothing else in while something that it has retracted waits; so none is left
        in its queue.
        """
        prealloc, paused = self.disagg_decode_prealloc_queue, self.tf_pauser.paused
        self._tf_reserve()
        prealloc.retracted_queue = [req for req in self.tf_actuator.offered if req in paused]
        if not prealloc.retracted_queue:
            return
        resumed = prealloc.resume_retracted_reqs()
        prealloc.retracted_queue = []
        for req in resumed:
            self.tf_pauser.resume([req])
            self.tf_paused_time.end(req)
            self.tf_table.move(req, Phase.RUNNING, self.tf_clock.now)
            self.tf_recorder.resumed(0, req.seqlen - 1, resident=0)
            trace(req, "resumed", recomputed=0, loaded=req.seqlen - 1)
        self.waiting_queue.extend(resumed)

    def _tf_reserve(self) -> None:
        """While streams can be paused, what each needs next is reserved, not what it may need.

        Where the host is full, SGLang ends streams for which it finds no memory.
        """
        prealloc = self.disagg_decode_prealloc_queue
        if self.tf_own_reserve is None:
            self.tf_own_reserve = int(prealloc.num_reserved_decode_tokens)
        reserve = self.tf_own_reserve
        if self.tf_actuator.chosen and self.tf_pauser.may_pause:
            reserve = min(reserve, self.tf_actuator.growth.headroom)
        prealloc.num_reserved_decode_tokens = reserve

    @contextmanager
    def _tf_chosen(self) -> Iterator[None]:
        """SGLang gives memory only to those of its queue that were chosen, in their order.

        What has failed or cannot be given memory yet it sees as well, since it polls those. Where
        the policy does not decide, paused streams that found no memory go before all of it, as
        retracted ones do.
        """
        prealloc, body = self.disagg_decode_prealloc_queue, self.tf_actuator
        some_wait = any(req in self.tf_pauser.paused for req in body.offered)
        if not prealloc.queue or not (body.chosen or some_wait):
            yield
            return
        with self.tf_effort:
            whole, held = self._tf_hold_back()
        try:
            yield
        finally:
            with self.tf_effort:
                there = {id(each) for each in (*prealloc.queue, *held)}
                known = set(map(id, whole))
                new = [each for each in prealloc.queue if id(each) not in known]
                prealloc.queue = [*(each for each in whole if id(each) in there), *new]

    def _tf_hold_back(self) -> tuple[list[Any], list[Any]]:
        """SGLang's queue as it was, and what of it is hidden."""
        prealloc = self.disagg_decode_prealloc_queue
        interval = get_disagg().disaggregation_decode_polling_interval
        if (getattr(self, "polling_count", 0) + 1) % interval == 0:
            # Or those that become ready in this very pass would be given memory unchosen.
            prealloc._resolve_pending_reqs()
            prealloc._update_handshake_waiters()
        place = {req: number for number, req in enumerate(self.tf_actuator.offered)}
        whole, table = prealloc.queue, self.tf_table
        free, chosen, held, unready = [], [], [], []
        for each in whole:
            if each.req not in table:
                free.append(each)
            elif not each.waiting_for_input or each.req.finished_reason is not None:
                unready.append(each)
            elif each.req in place:
                chosen.append(each)
            else:
                held.append(each)
        chosen.sort(key=lambda each: place[each.req])
        prealloc.queue = [*free, *chosen, *unready]
        return whole, held

    # ---- requests change places -----------------------------------------------------

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        """What SGLang has retracted is held, as it is on other servers, if SGLang has kept it.

        Else it asks the prefill server again, and waits as what arrives does.
        """
        if not (is_retracted and self.tf_pauser.retraction_loses):
            super()._add_request_to_queue(req, is_retracted)
            return
        super(TrackingScheduler, self)._add_request_to_queue(req, is_retracted=True)
        if req in self.tf_table:
            self.tf_table.move(req, Phase.WAITING, self.tf_clock.now)
            self.tf_paused_time.begin(req)

    def get_new_prebuilt_batch(self, running_batch: Any) -> Any:
        """Streams whose KV is here run from now on."""
        with self.tf_effort:
            alone, loads = running_batch.is_empty(), self.tf_loads
            coming = {} if loads is None else loads.coming(alone=alone)
            held = [req for req in self.waiting_queue if req in coming]
            if held:
                self.waiting_queue = [req for req in self.waiting_queue if req not in coming]
        batch = super().get_new_prebuilt_batch(running_batch)
        self.waiting_queue.extend(held)
        for req in () if batch is None else batch.reqs:
            table = self.tf_table
            self.tf_paused_time.end(req)  # also one whose KV was computed again
            if req in table and not table.phases.is_in(table.slot(req), Phase.RUNNING):
                table.move(req, Phase.RUNNING, self.tf_clock.now)
        return batch

    def _tf_stays(self, req: Any) -> None:
        """The host has no room for its KV: it goes on with the row that it has."""
        self.waiting_queue.append(req)
        self.tf_table.move(req, Phase.RUNNING, self.tf_clock.now)

    def _tf_computed_anew(self, req: Any) -> None:
        """Its KV is gone: as SGLang does with what it retracts, a prefill server computes it."""
        if req.output_ids:
            req.pd_rebootstrap_forced_output_id = req.output_ids.pop()
        req.pd_rebootstrap_in_progress = True
        req.time_stats.set_retract_time()
        self.disagg_decode_prealloc_queue.hold_rebootstrap(req)

    def _collect_inflight_batches(self) -> list[Any]:
        held = self.disagg_decode_prealloc_queue.held_rebootstrap_reqs
        batches: list[Any] = super()._collect_inflight_batches()
        return [*batches, ScheduleBatch(reqs=held)] if held else batches

    def abort_request(self, recv_req: Any) -> None:
        """End also what waits for its KV to be computed again, with the output that it has."""
        super().abort_request(recv_req)
        prealloc = self.disagg_decode_prealloc_queue
        held = prealloc.held_rebootstrap_reqs
        prealloc.held_rebootstrap_reqs = [req for req in held if req.to_finish is None]
        for req in held:
            if req.to_finish is None:
                continue
            if (last := req.pd_rebootstrap_forced_output_id) is not None:
                req.output_ids.append(last)
            self._release_aborted_request(req)
            req.update_finish_state(0)
            req.time_stats.set_completion_time()
            self.output_streamer.stream_output([req], req.return_logprob)

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        """Paused streams' only KV is on the host: the caches cannot be flushed before they end."""
        idle = super().is_fully_idle(for_health_check, ignore_waiting)
        return idle and not self.tf_pauser.paused

    def pause_generation(self, recv_req: Any) -> None:
        """What waits for its KV to be computed again waits as what arrives does."""
        if self.tf_loads is not None:
            self.tf_loads.settle()
        super().pause_generation(recv_req)
        for req in self.disagg_decode_prealloc_queue.held_rebootstrap_reqs:
            if req in self.tf_table:
                self.tf_table.move(req, Phase.WAITING, self.tf_clock.now)

    def _release_aborted_request(self, req: Any) -> None:
        """An aborted stream leaves no KV on the host, and no copy to memory that it gives back."""
        if self.tf_loads is not None:
            self.tf_loads.end(req)
        self.tf_pauser.discard(req)
        super()._release_aborted_request(req)
