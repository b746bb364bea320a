"""SGLang's scheduler with the policy at its decision point.

Every method here overrides one of SGLang's, calls it, and adds one thing; see the seams
ledger for the why of each. The loop, the batches and the memory stay SGLang's.
"""

from __future__ import annotations

import logging
from typing import Any

from sglang.srt.managers.schedule_batch import (
    FINISH_ABORT,
    FINISH_LENGTH,
    NextBatchPlan,
)
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.utils import TypeBasedDispatcher

from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.adder import AdmissionLimits, adder_class
from tokenflow_sgl.engine.clock import ClockTick, SharedClock, local_time
from tokenflow_sgl.engine.config import TokenFlowConfig, config_of
from tokenflow_sgl.engine.deciding import Decider
from tokenflow_sgl.engine.invariants import checker_with_draining
from tokenflow_sgl.engine.limits import check_model
from tokenflow_sgl.engine.metrics import PrometheusRecorder, Recorder
from tokenflow_sgl.engine.mixing import Mixing
from tokenflow_sgl.engine.offering import offer
from tokenflow_sgl.engine.pausing import Pauser
from tokenflow_sgl.engine.penalties import rebuild_rows
from tokenflow_sgl.engine.policies import load_policy
from tokenflow_sgl.engine.reporting import Reporter
from tokenflow_sgl.engine.requests import TrackingScheduler
from tokenflow_sgl.engine.steps import loaded_tokens, work_of
from tokenflow_sgl.engine.tracking import StreamTable
from tokenflow_sgl.policy import (
    Decision,
    Memory,
    Mode,
    OutputLengths,
    Phase,
    State,
)

logger = logging.getLogger(__name__)

CUT_OFF = (FINISH_ABORT, FINISH_LENGTH)
"""How outputs end that would have been longer."""


class TokenFlowScheduler(TrackingScheduler):
    """The scheduler that `--scheduler tokenflow` puts in place of SGLang's."""

    # SGLang's own, which this class also assigns.
    invariant_checker: Any
    policy: Any

    # ---- construction ---------------------------------------------------------------

    def init_metrics_collector(self) -> None:
        """Add our metrics to SGLang's."""
        super().init_metrics_collector()
        self.tf_recorder = Recorder()
        if self.metrics_collector_context.current_scheduler_metrics_enabled:
            self.tf_recorder = PrometheusRecorder(self.metrics_collector.labels)

    def init_schedule_policy(self) -> None:
        """Build the policy, the table of streams and what serves them."""
        super().init_schedule_policy()
        config = config_of(self.server_args)
        assert config is not None, "this class is only put in place with a configuration"
        check_model(
            is_generation=self.is_generation,
            is_hybrid_swa=self.is_hybrid_swa,
            is_hybrid_ssm=self.is_hybrid_ssm,
        )
        self.tf_config: TokenFlowConfig = config
        self.tf_rates = config.rates()
        self.tf_table: StreamTable[Any] = StreamTable(OutputLengths(config.length_quantile))
        self.tf_clock = SharedClock()
        self.tf_timer = StepTimer(lag=self._tf_lag())
        self.tf_reporter = Reporter(self.tf_table, self.tf_recorder, self.tf_timer)
        self.tf_pauser = Pauser(self.tree_cache, self._tf_paused)
        # A paused stream's last few tokens are loaded like the rest, not recomputed: that is
        # what a resume is promised to cost.
        if self.enable_hierarchical_cache:
            self.tree_cache.load_back_threshold = 1
        self.tf_mixing = Mixing(self, config)
        self.tf_limits = AdmissionLimits()
        self.tf_adder = adder_class(self.tf_limits)
        # The decision's order must survive SGLang's own sorting of the queue.
        self.tf_keep_order = SchedulePolicy(
            "fcfs", self.tree_cache, self.enable_hierarchical_cache, False, False
        )
        self.tf_decider = Decider(
            load_policy(config), config.policy, self.tf_table, self.tf_recorder
        )
        logger.info(
            "tokenflow scheduler is on: policy %s, HiCache %s, default rate %g tokens/s",
            config.policy,
            "on" if self.enable_hierarchical_cache else "off (evicted KV is recomputed)",
            self.tf_rates.default,
        )

    def init_request_dispatcher(self) -> None:
        """Take in the leader's clock with the requests."""
        super().init_request_dispatcher()
        self._request_dispatcher += TypeBasedDispatcher([(ClockTick, self.tf_clock.receive)])

    def init_invariant_checker(self) -> None:
        """Let strict memory checks see draining requests."""
        super().init_invariant_checker()
        self.invariant_checker = checker_with_draining(
            self.invariant_checker, lambda: self.tf_pauser.draining
        )

    def _tf_lag(self) -> int:
        """Iterations between a step's launch and the one that waits for it; see StepTimer."""
        synchronous = self.device == "cpu" and type(self.forward_stream).__module__.startswith(
            "torch."
        )
        return 1 if self.enable_overlap and not synchronous else 0

    # ---- the shared clock -----------------------------------------------------------

    def _poll_timeout_aborts(self) -> list[Any]:
        # Runs on the leader only; what it returns reaches every rank with the requests.
        messages: list[Any] = super()._poll_timeout_aborts()
        if len(self.tf_table):
            host = getattr(self.tree_cache.cache_controller, "mem_pool_host", None)
            messages.append(ClockTick(local_time(), host.size if host is not None else 0))
        return messages

    # ---- one iteration --------------------------------------------------------------

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Account what the last step delivered, then let SGLang choose."""
        now = self.tf_clock.now
        self.tf_timer.begin(now)
        ended = self.tf_pauser.finish_draining(self._tf_inflight)
        self.tf_reporter.iteration(now)
        # A dict, not a set: ranks must forget in the same order.
        for req in dict.fromkeys([*ended, *self._tf_finished()]):
            self.tf_table.forget(req, cut_off=isinstance(req.finished_reason, CUT_OFF))
        self._tf_end_aborted()
        plan = super().get_next_batch_to_run(running_batch, last_batch)
        crowded = bool(self.tf_pauser.paused)
        self.tf_timer.launch(work_of(plan.batch_to_run, crowded=crowded))
        return plan

    def _tf_inflight(self) -> set[Any]:
        """Requests with a result that is launched and not processed."""
        return {req for batch, _ in self.result_queue for req in batch.reqs}

    def _tf_finished(self) -> list[Any]:
        requests, _ = self.tf_table.active()
        return [req for req in requests if req.finished_reason is not None]

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        """Decide, preempt, and offer SGLang's admission the chosen requests in their order."""
        decision = self.tf_decider.decide(
            self.tf_clock.now, self._tf_free() / self.max_total_num_tokens, self._tf_state
        )
        self._tf_preempt(decision, running_batch)
        self.tf_table.admit(decision.admit)
        offered, hidden = offer(
            decision,
            self.tf_table,
            waiting=self.waiting_queue,
            paused=[req for req in self.tf_pauser.paused if req.to_finish is None],
            busy=bool(
                running_batch.reqs
                or self.chunked_req is not None
                or self.tf_pauser.draining
                or self.result_queue
            ),
        )
        follow = decision.mode is Mode.WORKING_SET
        self.is_mixed_chunk = self.tf_mixing.mixes(follow)
        # SGLang does not mix in rows that return log probabilities.
        goes_on = self.is_mixed_chunk and not running_batch.return_logprob
        if decision.hold_prefill and not goes_on and not running_batch.is_empty():
            return NextBatchPlan(batch_to_run=None, running_batch=running_batch)

        self.tf_limits.active = follow
        self.tf_limits.prefill_limit = decision.prefill_limit
        self.tf_limits.recompute = frozenset(map(self.tf_table.request, decision.recompute))
        whole, own_policy = self.waiting_queue, self.policy
        self.waiting_queue = offered
        if follow:
            self.policy = self.tf_keep_order
            if offered:
                running_batch.batch_is_full = False
        try:
            plan = super().get_new_batch_prefill(running_batch)
        finally:
            left = self.waiting_queue
            known = set(whole)
            remaining = {*hidden, *left}
            self.waiting_queue = [req for req in whole if req in remaining] + [
                req for req in left if req not in known and req not in self.tf_pauser.paused
            ]
            self.policy = own_policy
        if plan.batch_to_run is not None:
            self._tf_started(plan.batch_to_run)
        return plan

    def get_prefill_adder_class(self) -> Any:
        """The adder that admits by need while the policy decides."""
        return self.tf_adder

    # ---- deciding and applying ------------------------------------------------------

    def _tf_free(self) -> int:
        """Device KV tokens that can be allocated: free, or in the tree and locked by nobody."""
        free: int = self.token_to_kv_pool_allocator.available_size()
        return free + int(self.tree_cache.evictable_size())

    def _tf_state(self) -> State:
        barred: list[int] = []
        promised = 0
        chunked = self.chunked_req
        if chunked is not None and chunked in self.tf_table:
            barred.append(self.tf_table.slot(chunked))
            promised = max(chunked.seqlen - chunked.prefix_len, 0)
        return State(
            now=self.tf_clock.now,
            streams=self.tf_table.streams(barred),
            memory=Memory(
                device_total=self.max_total_num_tokens,
                device_free=self._tf_free(),
                device_promised=promised,
                host_total=self.tf_clock.host_total,
                page_size=self.page_size,
                max_running=self.max_running_requests,
            ),
            costs=self.tf_timer.costs(),
            last_prefill_end=self.tf_timer.last_prefill_end,
            last_prefill_seconds=self.tf_timer.last_prefill_seconds,
            throughput=self.tf_timer.throughput(),
            kv_rate=self.tf_timer.kv_rate(),
            prefill_share=self.tf_timer.prefill_share(),
            recollection=self.tf_decider.recollection,
        )

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
        self.tf_pauser.preempt(victims, running_batch, self._tf_inflight())

    def _tf_started(self, batch: Any) -> None:
        """Streams of a new prefill batch run from now on."""
        decoding = set(batch.decoding_reqs or ())
        resumed = []
        for req in batch.reqs:
            if req in decoding or req not in self.tf_table:
                continue
            if req in self.tf_pauser.paused:
                self.tf_recorder.resumed(
                    recomputed=len(req.full_untruncated_fill_ids) - req.prefix_len,
                    loaded=loaded_tokens(req),
                )
            if req.output_ids:
                resumed.append(req)
            if self.tf_table.phase[self.tf_table.slot(req)] != Phase.RUNNING:
                self.tf_table.move(req, Phase.RUNNING, self.tf_clock.now)
        self.tf_pauser.resume(batch.reqs)
        if resumed:
            rebuild_rows(batch, resumed, overlap=self.enable_overlap)
