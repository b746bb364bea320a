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
from sglang.srt.runtime_context import get_parallel
from sglang.utils import TypeBasedDispatcher

from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.adder import AdmissionLimits, adder_class
from tokenflow_sgl.engine.agreement import Agreement
from tokenflow_sgl.engine.applying import ApplyingScheduler
from tokenflow_sgl.engine.clock import ClockTick, SharedClock, local_time
from tokenflow_sgl.engine.config import TokenFlowConfig, config_of
from tokenflow_sgl.engine.deciding import Decider
from tokenflow_sgl.engine.decision_log import DecisionLog, log_path, names_of
from tokenflow_sgl.engine.invariants import checker_with_draining
from tokenflow_sgl.engine.limits import check_model
from tokenflow_sgl.engine.loading import Loader
from tokenflow_sgl.engine.metrics import PrometheusRecorder, Recorder
from tokenflow_sgl.engine.mixing import Mixing
from tokenflow_sgl.engine.offering import offer
from tokenflow_sgl.engine.pausing import Pauser
from tokenflow_sgl.engine.policies import load_policy
from tokenflow_sgl.engine.reporting import Effort, Reporter
from tokenflow_sgl.engine.steps import work_of
from tokenflow_sgl.engine.timeouts import PausedTime
from tokenflow_sgl.engine.tracking import StreamTable
from tokenflow_sgl.engine.transfers import TransferWatch
from tokenflow_sgl.engine.writing import Writer
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


class TokenFlowScheduler(ApplyingScheduler):
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
        self.tf_whole, self.tf_offered = None, frozenset()
        self.tf_paused_time = PausedTime()
        self.tf_table: StreamTable[Any] = StreamTable(OutputLengths(config.length_quantile))
        self.tf_clock = SharedClock()
        rank = get_parallel().attn_tp_rank
        self.tf_agreement = Agreement(rank) if config.check_ranks else None
        self.tf_undated = []
        self.tf_timer = StepTimer(lag=self._tf_lag())
        self.tf_effort = Effort()
        self.tf_reporter = Reporter(self.tf_table, self.tf_recorder, self.tf_timer, self.tf_effort)
        self.tf_writer = Writer(self.tree_cache, self.tf_table, self.tf_recorder, self.page_size)
        self.tf_transfers = TransferWatch(self.tree_cache.cache_controller, self.tf_recorder)
        self.tf_loader = Loader(self.tree_cache)
        self.tf_pauser = Pauser(self.tree_cache, self.tf_writer.released, self._tf_paused)
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
            load_policy(config), config.policy, self.tf_table, self.tf_recorder, self._tf_log()
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
        self._request_dispatcher += TypeBasedDispatcher([(ClockTick, self._tf_tick)])

    def init_invariant_checker(self) -> None:
        """Let strict memory checks see draining requests."""
        super().init_invariant_checker()
        self.invariant_checker = checker_with_draining(
            self.invariant_checker, lambda: self.tf_pauser.draining
        )

    def _tf_log(self) -> DecisionLog | None:
        """The log of decisions, if there is to be one: on one of the ranks, which decide alike."""
        path, ranks = self.tf_config.decision_log, get_parallel()
        if not path or ranks.attn_tp_rank:
            return None
        return DecisionLog(
            log_path(path, (ranks.dp_rank, ranks.pp_rank)), names_of(self.tf_table.request)
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
        if self.server_args.tp_size > 1:
            # Even while there is no stream: all ranks take the first one's arrival from it.
            with self.tf_effort:
                messages.append(self._tf_measure())
        return messages

    def _tf_measure(self) -> ClockTick:
        host = getattr(self.tree_cache.cache_controller, "mem_pool_host", None)
        return ClockTick(
            local_time(),
            host.size if host is not None else 0,
            *self.tf_transfers.look(),
            passes=self.tf_agreement.report() if self.tf_agreement else None,
        )

    # ---- one iteration --------------------------------------------------------------

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Account what the last step delivered, then let SGLang choose."""
        with self.tf_effort:
            if self.server_args.tp_size == 1 and len(self.tf_table):
                # By itself: a message would be lost where --scheduler-recv-interval skips a turn.
                self._tf_tick(self._tf_measure())
            self._tf_account(running_batch, last_batch)
        plan = super().get_next_batch_to_run(running_batch, last_batch)
        with self.tf_effort:
            crowded = bool(self.tf_pauser.paused)
            self.tf_timer.launch(work_of(plan.batch_to_run, crowded=crowded))
            if self.tf_agreement is not None:
                self.tf_agreement.passed(self, plan)
        self.tf_effort.end_pass(worked=plan.batch_to_run is not None)
        return plan

    def _tf_account(self, running_batch: Any, last_batch: Any) -> None:
        now = self.tf_clock.now
        self.tf_timer.begin(now)
        ended = self.tf_pauser.finish_draining(self._tf_inflight)
        self.tf_reporter.iteration(now)
        # A dict, not a set: ranks must forget in the same order.
        for req in dict.fromkeys([*ended, *self._tf_finished()]):
            if not isinstance(req.finished_reason, FINISH_ABORT):
                self.tf_reporter.ended(req)
            self._tf_forget(req, cut_off=isinstance(req.finished_reason, CUT_OFF))
        self._tf_end_aborted(self.tf_pauser.paused)
        self._tf_drop_lost(running_batch, last_batch)

    def _tf_finished(self) -> list[Any]:
        requests, _ = self.tf_table.active()
        return [req for req in requests if req.finished_reason is not None]

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        """Decide, preempt, and offer SGLang's admission the chosen requests in their order."""
        with self.tf_effort:
            decision = self._tf_decide(running_batch)
            offered = self._tf_offer(decision, running_batch)
        follow = decision.mode is Mode.WORKING_SET
        self.is_mixed_chunk = self.tf_mixing.mixes(follow, len(running_batch.reqs))
        # SGLang does not mix in rows that return log probabilities.
        goes_on = self.is_mixed_chunk and not running_batch.return_logprob
        if decision.hold_prefill and not goes_on and not running_batch.is_empty():
            return NextBatchPlan(batch_to_run=None, running_batch=running_batch)

        self.tf_limits.active = follow
        self.tf_limits.prefill_limit = decision.prefill_limit
        self.tf_limits.align = self.truncation_align_size
        self.tf_limits.recompute = frozenset(map(self.tf_table.request, decision.recompute))
        own_policy = self.policy
        if follow:
            self.policy = self.tf_keep_order
            if offered:
                running_batch.batch_is_full = False
        try:
            with self._tf_offering(offered):
                plan = super().get_new_batch_prefill(running_batch)
        finally:
            self.policy = own_policy
        if plan.batch_to_run is not None:
            with self.tf_effort:
                self.tf_loader.guard(plan.batch_to_run)
                self._tf_started(plan.batch_to_run)
        return plan

    def _tf_decide(self, running_batch: Any) -> Decision:
        """Ask the policy, and do what it says of running and paused streams."""
        landed = self.tf_loader.ended()
        if landed is not None and landed in self.tf_pauser.paused:
            self.tf_table.move(landed, Phase.PAUSED, self.tf_clock.now)
        decision = self.tf_decider.decide(
            self.tf_clock.now, self._tf_free() / self.max_total_num_tokens, self._tf_state
        )
        if self.tf_agreement is not None:
            self.tf_agreement.decided(decision)
        if decision.write:
            self.tf_writer.apply(decision.write, set(running_batch.reqs))
        self._tf_preempt(decision, running_batch)
        if decision.load and self.enable_hierarchical_cache:
            self._tf_load(decision, running_batch)
        self.tf_table.admit(decision.admit)
        return decision

    def _tf_offer(self, decision: Decision, running_batch: Any) -> list[Any]:
        """Requests that SGLang may admit now, in their order."""
        return offer(
            decision,
            self.tf_table,
            waiting=self.waiting_queue,
            paused=[
                req
                for req in self.tf_pauser.paused
                if req.to_finish is None and req is not self.tf_loader.request
            ],
            busy=bool(
                running_batch.reqs
                or self.chunked_req is not None
                or self.tf_pauser.draining
                or self.tf_loader.request is not None
                or self.result_queue
            ),
        )

    def get_prefill_adder_class(self) -> Any:
        """The adder that admits by need while the policy decides."""
        return self.tf_adder

    # ---- deciding -------------------------------------------------------------------

    def _tf_state(self) -> State:
        chunked = self.chunked_req
        barred = [self.tf_table.slot(chunked)] if chunked in self.tf_table else []
        return State(
            now=self.tf_clock.now,
            streams=self.tf_table.streams(barred, writes=self.tf_writer.active),
            memory=Memory(
                device_total=self.max_total_num_tokens,
                device_free=self._tf_free(),
                device_promised=self._tf_promised(),
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
            links=self.tf_transfers.links(self.tf_clock),
            recollection=self.tf_decider.recollection,
        )
