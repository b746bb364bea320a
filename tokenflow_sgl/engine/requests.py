"""SGLang's scheduler that keeps track of its streams: where each of them stands, paused ones too.

What it overrides of SGLang, and why: see the seams ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.utils import is_health_check_generate_req

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.agreement import Agreement
from tokenflow_sgl.engine.frontend.terms import NOT_STREAMED, class_of
from tokenflow_sgl.engine.frontend.validate import refuse_bad_terms
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.offering import OfferingScheduler
from tokenflow_sgl.engine.priority_scheduling import shown_priority
from tokenflow_sgl.engine.reasoning import Reasoning
from tokenflow_sgl.engine.shared_clock import ClockTick, SharedClock, local_time
from tokenflow_sgl.engine.stream_messages import flush_waits, is_ours, take
from tokenflow_sgl.engine.telemetry.headroom_watch import HeadroomWatch
from tokenflow_sgl.engine.telemetry.load_report import ReportedScheduler, inquirer_with_paused
from tokenflow_sgl.engine.telemetry.sampling import Reporter
from tokenflow_sgl.engine.timeouts import PausedTime
from tokenflow_sgl.engine.unsupported import undisturbed_reason
from tokenflow_sgl.engine.unsupported_front_ends import grpc_alone
from tokenflow_sgl.lifecycle.rest_ends import use_adapter
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.qos.classes import QosClasses

logger = logging.getLogger(__name__)


class TrackingScheduler(OfferingScheduler):
    """Requests come, go, and are thrown out; `TokenFlowScheduler` builds what keeps the books."""

    waiting_queue: list[Any]  # SGLang's own, as the next one is
    load_inquirer: Any

    tf_reporter: Reporter
    tf_classes: QosClasses
    tf_reasoning: Reasoning
    tf_table: StreamTable[Any]
    tf_clock: SharedClock
    tf_by_rid: dict[str, Any]
    tf_undated: list[Any]
    tf_actuator: EngineActuator
    tf_pauser: Pauser
    tf_paused_time: PausedTime
    tf_loader: Loader
    tf_headroom: HeadroomWatch
    tf_transfers: TransferWatch
    tf_agreement: Agreement | None
    tf_without_hicache = "off (evicted KV is recomputed)"
    """What a line of the log says where there is none."""
    tf_named: list[Any] | None = None
    """What drains or is paused of what the present abort names: no abort looks through all."""

    # ---- what is reported -----------------------------------------------------------

    def init_metrics_reporter(self) -> None:
        """Count paused streams in SGLang's gauges and log lines."""
        super().init_metrics_reporter()
        self.metrics_reporter.scheduler = ReportedScheduler(self, lambda: self.tf_pauser.paused)

    def init_load_inquirer(self) -> None:
        """Count paused streams in /v1/loads, and tell its readers the headroom."""
        super().init_load_inquirer()
        self.load_inquirer = inquirer_with_paused(
            self.load_inquirer,
            self._tf_waiting,
            lambda: self.tf_pauser.paused,
            lambda: self.tf_headroom.tokens,
        )

    # ---- requests come --------------------------------------------------------------

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        known = req in self.tf_table
        if known and req.output_ids:
            # Thrown out by the engine itself (memory, or pause_generation): it waits as preempted
            # ones do, not in the queue, whose limit is for newcomers.
            return self.tf_pauser.hold(req)
        if not known:
            refuse_bad_terms(req, self.tf_classes, grpc_alone(self.server_args))
        with self._tf_whole_queue() as queue:
            super()._add_request_to_queue(req, is_retracted=is_retracted)
            queued = self._tf_newest(queue) is req
        if queued and known:
            self.tf_table.move(req, Phase.WAITING, self.tf_clock.now)
        elif queued and req.to_finish is None and not is_health_check_generate_req(req):
            self._tf_track(req)

    def _tf_newest(self, queue: list[Any]) -> Any:
        """The request that was queued last; None: none is queued."""
        return queue[-1] if queue else None

    def _tf_requeue(self, req: Any) -> None:
        if req.output_ids:
            return self.tf_pauser.hold(req)
        super()._tf_requeue(req)
        if req in self.tf_table:
            self.tf_table.move(req, Phase.WAITING, self.tf_clock.now)

    def _tf_forget(self, req: Any, *, cut_off: bool, ended: float | None = None) -> None:
        """The stream is gone; cut_off: its output would have been longer; ended: when it did."""
        self.tf_reporter.leaves(req, ended)
        self.tf_table.forget(req, cut_off=cut_off)
        self.tf_loader.give_up(req)
        if req is self.tf_by_rid.get(rid := req.rid):  # another one may have its id by now
            del self.tf_by_rid[rid]
        self.tf_paused_time.forget(req)

    def _tf_drop_lost(self, running_batch: Any, last_batch: Any) -> None:
        """Forget streams that are in no batch and no queue: the engine has ended them by itself."""
        queue, table = self.tf_actuator.queue, self.tf_table
        held = {*self.tf_pauser.draining, *self.tf_pauser.paused, *running_batch.reqs}
        found = sum(req in table for req in held - queue.requests)
        if found + len(queue.requests) - len(queue.untracked) == len(table):
            return  # as in nearly every pass
        held |= queue.requests
        for batch in (last_batch, *(batch for batch, _ in self.result_queue)):
            held.update(batch.reqs if batch is not None else ())
        held.add(self.chunked_req)
        for req in table.lost(held):
            self._tf_forget(req, cut_off=True)
            if req.finished_reason is None:
                self.tf_recorder.lost()

    def _tf_measure(self) -> ClockTick:
        return ClockTick(
            local_time(),
            self._tf_host_tokens(),
            *self.tf_transfers.look(),
            passes=self.tf_agreement.report() if self.tf_agreement else None,
        )

    def _tf_keep_time(self) -> None:
        """A pass begins: go on with the clock, which stands still while nothing is served."""
        if len(self.tf_table):
            self._tf_tick(self._tf_measure())
        else:
            self.tf_transfers.settle()

    def _tf_host_tokens(self) -> int:
        """KV tokens that the host has room for."""
        host = getattr(self.tree_cache.cache_controller, "mem_pool_host", None)
        return 0 if host is None else int(host.size)

    def _tf_tick(self, tick: ClockTick) -> None:
        """The leader's clock; it comes behind the requests that arrived with it."""
        if self.tf_agreement is not None and tick.passes is not None:
            self.tf_agreement.compare(tick.passes)
        self.tf_clock.receive(tick)
        for req in self.tf_undated:
            if req in self.tf_table:
                self.tf_table.redate(req, self.tf_clock.now)
        self.tf_undated.clear()

    def _tf_track(self, req: Any) -> None:
        params = req.sampling_params.custom_params
        asked = class_of(params, self.tf_classes) if req.stream else NOT_STREAMED
        if self.tf_alone:
            # Now: SGLang's stamp of when it was created stays in the front end.
            self.tf_clock.at_least(local_time())
        else:
            self.tf_undated.append(req)
        slot = self.tf_table.track(
            req,
            prompt=len(req.origin_input_ids),
            limit=req.sampling_params.max_new_tokens,
            rate=asked.rate,
            qos_class=asked.name,
            arrival=self.tf_clock.now,
            now=self.tf_clock.now,
            streaming=bool(req.stream),
            thinking=self.tf_reasoning.begins(req),
            hidden=self.tf_reasoning.hidden,
            weight=asked.weight,
            tolerance=asked.tolerance,
            priority=shown_priority(self, req),
            reader=asked.reader,
        )
        self.tf_table.ask(slot, asked)
        use_adapter(self.tf_table, req, req.lora_id)
        self.tf_by_rid[req.rid] = req
        if (reason := self._tf_undisturbed(req)) is not None:
            self.tf_table.preemptible[slot] = False
            logger.debug("request %s runs without preemption: %s", req.rid, reason)

    def _tf_undisturbed(self, req: Any) -> str | None:
        return undisturbed_reason(req)

    def set_internal_state(self, recv_req: Any) -> Any:
        """Hear what the front end tells of live streams."""
        if not is_ours(recv_req):
            return super().set_internal_state(recv_req)
        if self.tf_alone:
            self.tf_clock.at_least(local_time())  # it stands while the engine is paused
        compiling = self.grammar_manager.grammar_queue
        return take(recv_req, self.tf_by_rid, compiling, self.tf_table, self.tf_clock.now)

    def process_input_requests(self, recv_reqs: Any) -> None:
        """A flush that waits ends all rests: it is done when no stream is left."""
        flush_waits(recv_reqs, self.tf_table, self.tf_clock.now)
        super().process_input_requests(recv_reqs)

    def _tf_owners(self) -> list[Any]:
        """Requests with memory that SGLang does not look for: they are in no batch."""
        return self.tf_pauser.draining

    # ---- requests end ---------------------------------------------------------------

    def _poll_timeout_aborts(self) -> list[Any]:
        """A stream that has started does not time out for having been paused."""
        aborts: list[Any] = super()._poll_timeout_aborts()
        if not aborts:
            return aborts
        started = {req.rid: req for req in self.tf_table.started()}
        named = [started[abort.rid] for abort in aborts if abort.rid in started]
        overdue = self.tf_paused_time.overdue(named, envs.SGLANG_REQ_RUNNING_TIMEOUT.get())
        return [abort for abort in aborts if abort.rid not in started or abort.rid in overdue]

    def _collect_inflight_batches(self) -> list[Any]:
        batches: list[Any] = super()._collect_inflight_batches()
        pauser, held = self.tf_pauser, self.tf_named
        held = [*pauser.draining, *pauser.paused] if held is None else held
        return [*batches, ScheduleBatch(reqs=held)] if held else batches

    def abort_request(self, recv_req: Any) -> None:
        """End aborted streams wherever they are; a paused one with its output so far."""
        self.tf_named = self.tf_pauser.named("" if recv_req.abort_all else recv_req.rid)
        try:
            super().abort_request(recv_req)
            self._tf_end_aborted(self.tf_named)
        finally:
            self.tf_named = None

    def _release_aborted_request(self, req: Any) -> None:
        """The engine drops a request that holds no row: turned away, or aborted while it waits."""
        super()._release_aborted_request(req)
        if req in self.tf_table:
            self._tf_forget(req, cut_off=True)

    def _tf_end_aborted(self, among: Iterable[Any]) -> None:
        """Finish those paused streams that were aborted, with the output that they have."""
        paused = self.tf_pauser.paused
        for req in [req for req in among if req in paused and req.to_finish is not None]:
            self.tf_pauser.resume([req])
            self._release_aborted_request(req)
            self.beam_coordinator.retire_group(req)
            req.update_finish_state(0)
            req.time_stats.set_completion_time()
            self.output_streamer.stream_output([req], req.return_logprob)

    # ---- the engine is paused, or idle ----------------------------------------------

    def pause_generation(self, recv_req: Any) -> None:
        """Drop the KV of draining requests and end all copies: the weights may change now."""
        super().pause_generation(recv_req)
        if recv_req.mode == "retract":
            self.tf_pauser.drop_draining()
        self.tf_actuator.settle(self.tf_clock.now)
        self.tf_timer.interrupted()

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        """Paused and draining streams are work, and so is a load, whosever it was."""
        idle: bool = super().is_fully_idle(for_health_check, ignore_waiting)
        idle = idle and not self.tf_pauser.draining and not self.tf_loader.busy
        return idle and (ignore_waiting or not self.tf_pauser.paused)

    def _tf_paused(self, req: Any) -> None:
        """A request left the device: it waits as the engine's own waiters do."""
        self.tf_table.move(req, Phase.PAUSED, self.tf_clock.now)
        self.tf_paused_time.begin(req)
        self._tf_hand_over(req)
        self._prefetch_kvcache(req)
        req.time_stats.set_wait_queue_entry_time()

    def _tf_hand_over(self, req: Any) -> None:
        """Send what a paused stream has made, though SGLang's stream interval is not full yet.

        Its next tokens may be long in coming. What may be the beginning of a stop string is kept.
        """
        if not req.stream or req.send_token_offset >= len(req.output_ids):
            return
        sampling = req.sampling_params
        interval, sampling.stream_interval = sampling.stream_interval, 1
        try:
            self.output_streamer.stream_output([req], req.return_logprob)
        finally:
            sampling.stream_interval = interval
