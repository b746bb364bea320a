"""SGLang's scheduler that keeps track of its streams: where each of them stands, paused ones too.

What it overrides of SGLang, and why: see the seams ledger.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.managers.utils import is_health_check_generate_req

from tokenflow_sgl.engine.clock import ClockTick, SharedClock, device_time, local_time
from tokenflow_sgl.engine.limits import undisturbed_reason
from tokenflow_sgl.engine.loading import Loader
from tokenflow_sgl.engine.pausing import Pauser
from tokenflow_sgl.engine.rates import RateClasses, RateError
from tokenflow_sgl.engine.tracking import StreamTable
from tokenflow_sgl.policy import Phase

logger = logging.getLogger(__name__)


class TrackingScheduler(Scheduler):  # type: ignore[misc]
    """Requests come, go, and are thrown out; `TokenFlowScheduler` builds what keeps the books."""

    # SGLang's own, which this class also assigns.
    waiting_queue: list[Any]

    tf_rates: RateClasses
    tf_table: StreamTable[Any]
    tf_clock: SharedClock
    tf_undated: list[Any]
    """Tensor-parallel: streams of this iteration, until the leader says what time it is."""
    tf_pauser: Pauser
    tf_loader: Loader

    def _create_generation_req(self, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
        req = super()._create_generation_req(recv_req, *args, **kwargs)
        try:
            rate, name = self.tf_rates.of(recv_req.sampling_params.custom_params)
        except RateError:
            # The front end answers bad rates; what comes around it reads at the default.
            rate, name = self.tf_rates.default, "default"
        req.tf_reader = rate, name
        return req

    def _add_request_to_queue(self, req: Any, is_retracted: bool = False) -> None:
        super()._add_request_to_queue(req, is_retracted=is_retracted)
        if not (self.waiting_queue and self.waiting_queue[-1] is req):
            return  # turned away
        if req in self.tf_table:
            # Thrown out by the engine itself (memory, or pause_generation).
            if req.output_ids:
                self.waiting_queue.pop()
                self.tf_pauser.paused[req] = None
                self.tf_table.move(req, Phase.PAUSED, self.tf_clock.now)
            else:
                self.tf_table.move(req, Phase.WAITING, self.tf_clock.now)
        elif req.to_finish is None and not is_health_check_generate_req(req):
            self._tf_track(req)

    def _tf_tick(self, tick: ClockTick) -> None:
        """The leader's clock; it comes behind the requests that arrived with it."""
        self.tf_clock.receive(tick)
        for req in self.tf_undated:
            if req in self.tf_table:
                self.tf_table.redate(req, self.tf_clock.now)
        self.tf_undated.clear()

    def _tf_track(self, req: Any) -> None:
        rate, name = req.tf_reader
        arrival = self.tf_clock.now
        if self.server_args.tp_size == 1:
            # Exact; but each rank converts a request's time stamps by a calibration of its own.
            created = req.time_stats.created_time
            arrival = device_time(created) if created else local_time()
            self.tf_clock.at_least(arrival)
        else:
            self.tf_undated.append(req)
        slot = self.tf_table.track(
            req,
            prompt=len(req.origin_input_ids),
            limit=req.sampling_params.max_new_tokens,
            rate=rate,
            qos_class=name,
            arrival=arrival,
            now=self.tf_clock.now,
        )
        reason = undisturbed_reason(req)
        if reason is not None:
            self.tf_table.preemptible[slot] = False
            logger.debug("request %s runs without preemption: %s", req.rid, reason)

    def _collect_inflight_batches(self) -> list[Any]:
        batches: list[Any] = super()._collect_inflight_batches()
        held = [*self.tf_pauser.draining, *self.tf_pauser.paused]
        return [*batches, ScheduleBatch(reqs=held)] if held else batches

    def abort_request(self, recv_req: Any) -> None:
        """End aborted streams wherever they are; a paused one with its output so far."""
        super().abort_request(recv_req)
        queued = set(self.waiting_queue)
        for req in self.tf_table.requests(Phase.WAITING):
            if req not in queued:
                self.tf_table.forget(req, cut_off=True)
        self._tf_end_aborted()

    def _tf_end_aborted(self) -> None:
        """Finish paused streams that were aborted, with the output that they have."""
        for req in [req for req in self.tf_pauser.paused if req.to_finish is not None]:
            self.tf_pauser.resume([req])
            self.tf_table.forget(req, cut_off=True)
            self._release_aborted_request(req)
            req.update_finish_state(0)
            req.time_stats.set_completion_time()
            self.output_streamer.stream_output([req], req.return_logprob)

    def pause_generation(self, recv_req: Any) -> None:
        """Drop the KV of draining requests and end a load, too: the weights may change now."""
        super().pause_generation(recv_req)
        landed = self.tf_loader.settle()
        if landed is not None and landed in self.tf_table:
            self.tf_table.move(landed, Phase.PAUSED, self.tf_clock.now)
        if recv_req.mode == "retract":
            self.tf_pauser.drop_draining()

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        """Paused and draining streams are work, and so is a load, whosever it was."""
        idle: bool = super().is_fully_idle(for_health_check, ignore_waiting)
        if self.tf_pauser.draining or self.tf_loader.request is not None:
            return False
        return idle and (ignore_waiting or not self.tf_pauser.paused)

    def _tf_paused(self, req: Any) -> None:
        """A preempted request's KV has gone to the tree: wait as the engine's own waiters do."""
        self.tf_table.move(req, Phase.PAUSED, self.tf_clock.now)
        req.storage_prefetch_retry_attempts = 0
        req.storage_prefetch_last_match_len = None
        req.staged_prefetch_plan = None
        self._prefetch_kvcache(req)
        req.time_stats.set_wait_queue_entry_time()
