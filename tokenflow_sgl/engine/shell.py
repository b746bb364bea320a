"""SGLang's scheduler with the policy at its decision point: `--scheduler tokenflow`.

Overrides only: each calls SGLang's method, and the core before or behind it. The loop, the batches
and the memory stay SGLang's.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sglang.srt.managers.scheduler import Scheduler
from sglang.utils import TypeBasedDispatcher

from tokenflow_sgl.engine.announcement import HOST_KV, announcement
from tokenflow_sgl.engine.build import build_core
from tokenflow_sgl.engine.core import Core
from tokenflow_sgl.engine.kv.host_size import host_ratio
from tokenflow_sgl.engine.kv.invariants import checker_with_draining
from tokenflow_sgl.engine.priority_scheduling import take_over_priorities
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.overriding import overrides
from tokenflow_sgl.engine.sglang.release import said
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.shared_clock import ClockTick
from tokenflow_sgl.engine.stream_messages import is_ours
from tokenflow_sgl.engine.telemetry.load_report import inquirer_with_paused


def introduction(scheduler: LiveScheduler) -> dict[str, Any]:
    """What a scheduler of ours says of itself; /server_info has it, too."""
    ours = announcement(type(scheduler))
    if scheduler.enable_hierarchical_cache:
        ours[HOST_KV] = host_ratio()
    return ours


class TokenFlowScheduler(Scheduler):  # type: ignore[misc]
    """The scheduler that `--scheduler tokenflow` puts in place of SGLang's."""

    tokenflow: Core
    """All that is ours."""

    # SGLang's own, which this class also assigns.
    invariant_checker: Any
    load_inquirer: Any

    # ---- construction ---------------------------------------------------------------

    @overrides("builds the core, when SGLang has its model, its memory and its own policy")
    def init_schedule_policy(self) -> None:
        super().init_schedule_policy()
        take_over_priorities(self)
        self.tokenflow = build_core(self)

    @overrides("paused and draining streams in SGLang's memory checks and /v1/loads; the clock")
    def init_internal_state(self) -> None:
        super().init_internal_state()  # the last of SGLang's parts to be built
        core = self.tokenflow
        self._request_dispatcher += TypeBasedDispatcher([(ClockTick, core.tick)])
        self.invariant_checker = checker_with_draining(
            self.invariant_checker, lambda: core.body.owners, core.extensions.memory_checked
        )
        self.load_inquirer = inquirer_with_paused(
            self.load_inquirer,
            core.gate.queue.waiting,
            lambda: core.body.pauser.paused,
            core.meters.headroom,
            core.book.full_tenants,
        )

    @overrides("says that the scheduler is ours, now that all of it is built")
    def get_init_info(self) -> dict[str, Any]:
        return said(super().get_init_info(), introduction(self))

    @overrides("writes learned lengths when the server shuts down")
    def release_host_resources(self) -> None:
        self.tokenflow.closes()
        super().release_host_resources()

    # ---- a pass ---------------------------------------------------------------------

    @overrides("accounts what the last step delivered, and times the next one")
    def get_next_batch_to_run(self, running_batch: ReqBatch, last_batch: ReqBatch | None) -> Any:
        return self.tokenflow.next_batch(running_batch, last_batch, super().get_next_batch_to_run)

    @overrides("the decision point: decides, and lets admission see what the policy offers")
    def get_new_batch_prefill(self, running_batch: ReqBatch) -> Any:
        return self.tokenflow.new_prefill(running_batch, super().get_new_batch_prefill)

    @overrides("decides in passes kept for decoding; waits for memory instead of retracting")
    def update_running_batch(self, batch: ReqBatch) -> Any:
        return self.tokenflow.decode(batch, super().update_running_batch)

    @overrides("memory by need, not by maximum")
    def get_prefill_adder_class(self) -> Any:
        return self.tokenflow.adder()

    @overrides("on a decode server the decision point: before memory is given away")
    def process_decode_queue(self) -> None:
        self.tokenflow.decode_queue(
            self.running_batch, self.last_batch, super().process_decode_queue
        )

    @overrides("times a decode server's steps")
    def get_next_disagg_decode_batch_to_run(self, running_batch: ReqBatch) -> Any:
        plan = super().get_next_disagg_decode_batch_to_run(running_batch)
        self.tokenflow.launched(plan)
        return plan

    @overrides("streams whose KV is here join a decode server's batch; others wait for theirs")
    def get_new_prebuilt_batch(self, running_batch: ReqBatch) -> Any:
        return self.tokenflow.joins(running_batch, super().get_new_prebuilt_batch)

    # ---- requests come --------------------------------------------------------------

    @overrides("starts to follow a stream; one that SGLang has retracted is paused")
    def _add_request_to_queue(self, req: Req, is_retracted: bool = False) -> None:
        queue = partial(super()._add_request_to_queue, req, is_retracted=is_retracted)
        self.tokenflow.queue(req, queue, is_retracted=is_retracted)

    @overrides("ends rests for a flush that waits")
    def process_input_requests(self, recv_reqs: Any) -> None:
        self.tokenflow.requests_come(recv_reqs)
        super().process_input_requests(recv_reqs)

    @overrides("hears how live streams are read")
    def set_internal_state(self, recv_req: Any) -> Any:
        if is_ours(recv_req):
            return self.tokenflow.told(recv_req)
        return super().set_internal_state(recv_req)

    # ---- requests end ---------------------------------------------------------------

    @overrides("sends the leader's clock; pauses do not count as running")
    def _poll_timeout_aborts(self) -> list[Any]:
        # Runs on the leader only; what it returns reaches every rank with the requests.
        return self.tokenflow.leader_messages(super()._poll_timeout_aborts())

    @overrides("aborts find paused streams")
    def _collect_inflight_batches(self) -> list[Any]:
        return [*super()._collect_inflight_batches(), *self.tokenflow.held_batches()]

    @overrides("ends paused streams, with their output so far")
    def abort_request(self, recv_req: Any) -> None:
        rid = "" if recv_req.abort_all else recv_req.rid
        abort = partial(super().abort_request, recv_req)
        self.tokenflow.abort(rid, abort, self._collect_inflight_batches)

    @overrides("forgets what is turned away, or aborted without a row")
    def _release_aborted_request(self, req: Req) -> None:
        self.tokenflow.body.releases(req)
        super()._release_aborted_request(req)
        self.tokenflow.released(req)

    # ---- the engine is paused, or idle ----------------------------------------------

    @overrides("drops draining KV and ends copies: the weights may change")
    def pause_generation(self, recv_req: Any) -> None:
        pause = partial(super().pause_generation, recv_req)
        self.tokenflow.pause(pause, retracts=recv_req.mode == "retract")

    @overrides("paused streams are work, and so are copies")
    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        return bool(super().is_fully_idle(for_health_check, ignore_waiting)) and (
            self.tokenflow.idle(for_health_check=for_health_check, ignore_waiting=ignore_waiting)
        )

    @overrides("acknowledges copies while the engine is paused, as the loop does")
    def _record_scheduler_state_for_paused_engine(self) -> None:
        super()._record_scheduler_state_for_paused_engine()
        if self.enable_hierarchical_cache:
            self.tree_cache.check_hicache_events()
        self.tokenflow.extensions.while_paused()
