"""SGLang's scheduler with the policy at its decision point.

Every method here overrides one of SGLang's, calls it, and adds one thing; see the seams
ledger for the why of each. The loop, the batches and the memory stay SGLang's.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, NextBatchPlan
from sglang.srt.managers.schedule_policy import SchedulePolicy
from sglang.srt.runtime_context import get_parallel
from sglang.utils import TypeBasedDispatcher

from tokenflow_sgl.contract import Decision, Mode, Phase
from tokenflow_sgl.costs import StepCosts, StepTimer
from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.agreement import Agreement
from tokenflow_sgl.engine.batch_work import loaded_tokens
from tokenflow_sgl.engine.config import NO_PLANNER, config_of
from tokenflow_sgl.engine.drafts import Drafts
from tokenflow_sgl.engine.kv.group_hooks import size_groups
from tokenflow_sgl.engine.kv.host_room import check_room
from tokenflow_sgl.engine.kv.invariants import checker_with_draining
from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.kv.load_ring import Loader
from tokenflow_sgl.engine.kv.memory_ledger import MemoryLedger
from tokenflow_sgl.engine.kv.penalties import rebuild_rows
from tokenflow_sgl.engine.kv.preempt import Pauser
from tokenflow_sgl.engine.kv.write import Writer
from tokenflow_sgl.engine.lengths_file import known_lengths, open_lengths_file
from tokenflow_sgl.engine.mixing import Mixing
from tokenflow_sgl.engine.model_kinds import check_model, kind_of_model
from tokenflow_sgl.engine.prefill_adder import AdmissionLimits, adder_class
from tokenflow_sgl.engine.priority_scheduling import take_over_priorities
from tokenflow_sgl.engine.ranks import place_in_group
from tokenflow_sgl.engine.reasoning import Reasoning
from tokenflow_sgl.engine.requests import TrackingScheduler
from tokenflow_sgl.engine.shared_clock import ClockTick, SharedClock, local_time
from tokenflow_sgl.engine.telemetry.applied import report_applied, report_resumed
from tokenflow_sgl.engine.telemetry.decision_log import DecisionListener, open_log
from tokenflow_sgl.engine.telemetry.headroom_watch import HeadroomWatch
from tokenflow_sgl.engine.telemetry.sampling import Effort, Reporter
from tokenflow_sgl.engine.timeouts import PausedTime
from tokenflow_sgl.engine.view import View
from tokenflow_sgl.lifecycle import Decider, apply
from tokenflow_sgl.lifecycle.rest_ends import any_waits, end_rests
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy import make_policy

logger = logging.getLogger(__name__)

CUT_OFF = (FINISH_ABORT, FINISH_LENGTH)
"""How outputs end that would have been longer."""


class TokenFlowScheduler(TrackingScheduler):
    """The scheduler that `--scheduler tokenflow` puts in place of SGLang's."""

    # SGLang's own, which this class also assigns.
    invariant_checker: Any
    policy: Any

    # ---- construction ---------------------------------------------------------------

    def init_schedule_policy(self) -> None:
        """Build the policy, the table of streams and what serves them."""
        super().init_schedule_policy()
        take_over_priorities(self)
        config = config_of(self.server_args)
        assert config is not None, "this class is only put in place with a configuration"
        check_model(**kind_of_model(self.model_config))
        self.tf_classes, self.tf_paused_time = config.known_classes, PausedTime()
        self.tf_reasoning = Reasoning(self.model_config, self.tokenizer, config.thinking)
        ranks = get_parallel()
        lengths = known_lengths(self.server_args, config, ranks.dp_rank)
        self.tf_table: StreamTable[Any] = StreamTable(lengths, reasoning=self.tf_reasoning.tokens)
        self.tf_lengths_file = open_lengths_file(config.lengths_file, ranks, lengths, local_time())
        self.tf_clock = SharedClock()
        self.tf_agreement = Agreement(place_in_group(ranks)) if config.check_ranks else None
        self.tf_by_rid, self.tf_undated, self.tf_table.rests.longest = {}, [], config.longest_rest
        self.tf_drafts = Drafts(self)
        self.tf_timer = StepTimer(lag=self._tf_lag(), most=self.tf_drafts.most)
        self.tf_effort = Effort()
        self.tf_reporter = Reporter(self.tf_table, self.tf_recorder, self.tf_timer, self.tf_effort)
        self.tf_writer = Writer(self.tree_cache, self.tf_table, self.tf_recorder, self.page_size)
        self.tf_transfers = TransferWatch(self.tree_cache.cache_controller, self.tf_recorder)
        self.tf_loader = Loader(self.tree_cache)
        self.tf_headroom = HeadroomWatch(config.working_set, self.tf_recorder)
        self.tf_pauser = Pauser(self.tree_cache, self.tf_writer.released, self._tf_paused)
        self.tf_actuator = EngineActuator(
            self, self.tf_table, self.tf_pauser, self.tf_writer, self.tf_loader
        )
        self.tf_view = View(
            self, self.tf_table, self.tf_actuator, self.tf_clock, self.tf_timer, self.tf_transfers
        )
        log = open_log(config.decision_log, ranks, self.tf_table.request, self.tf_recorder)
        if config.block_groups:
            size_groups(self.token_to_kv_pool_allocator, self.tf_table)
        if config.host_room:
            check_room(self.tree_cache)
        if config.restore != NO_PLANNER:
            self._tf_restore(config.restore, log)
        # A paused stream's last tokens are loaded, too: that is what a resume is promised to cost.
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
            make_policy(config.policy, config.working_set),
            config.policy,
            self.tf_table.phases,
            DecisionListener(self.tf_recorder, log),
        )
        logger.info(
            "tokenflow scheduler is on: policy %s, HiCache %s, default rate %g tokens/s",
            config.policy,
            "on" if self.enable_hierarchical_cache else self.tf_without_hicache,
            self.tf_classes.default.rate,
        )

    def init_request_dispatcher(self) -> None:
        """Take in the leader's clock with the requests."""
        super().init_request_dispatcher()
        self._request_dispatcher += TypeBasedDispatcher([(ClockTick, self._tf_tick)])

    def init_invariant_checker(self) -> None:
        """Let strict memory checks see draining requests, and every page."""
        super().init_invariant_checker()
        ledger = MemoryLedger(
            self.tree_cache,
            self.token_to_kv_pool_allocator,
            self.req_to_token_pool,
            lambda: self.tf_restorations.copy_memory.held if self.tf_restorations else (),
        )
        self.invariant_checker = checker_with_draining(
            self.invariant_checker, self._tf_owners, ledger
        )

    def release_host_resources(self) -> None:
        """The server shuts down: keep what was learned of lengths since it was last written."""
        if self.tf_lengths_file is not None:
            self.tf_lengths_file.close()
        super().release_host_resources()

    def _tf_costs(self) -> StepCosts:
        return self.tf_timer.costs()

    # ---- the shared clock -----------------------------------------------------------

    def _poll_timeout_aborts(self) -> list[Any]:
        # Runs on the leader only; what it returns reaches every rank with the requests.
        messages: list[Any] = super()._poll_timeout_aborts()
        if not self.tf_alone:
            # Even while there is no stream: all ranks take the first one's arrival from it.
            with self.tf_effort:
                messages.append(self._tf_measure())
        return messages

    # ---- one iteration --------------------------------------------------------------

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Account what the last step delivered, then let SGLang choose."""
        with self.tf_effort:
            self._tf_begin(running_batch, last_batch)
        plan = super().get_next_batch_to_run(running_batch, last_batch)
        self._tf_launched(plan)
        return plan

    def _tf_launched(self, plan: Any) -> None:
        with self.tf_effort:
            crowded = bool(self.tf_pauser.paused) and any_waits(self.tf_table)
            queued = self.tf_loader.request is not None
            self.tf_timer.launch(self._tf_work(plan.batch_to_run, crowded=crowded, queued=queued))
            if self.tf_agreement is not None:
                self.tf_agreement.passed(self, plan)
        self.tf_effort.end_pass(worked=plan.batch_to_run is not None)

    def _tf_begin(self, running_batch: Any, last_batch: Any) -> None:
        if self.tf_alone:
            # By itself: a message would be lost where --scheduler-recv-interval skips a turn.
            self._tf_keep_time()
        now = self.tf_clock.now
        self.tf_timer.begin(now)
        end_rests(self.tf_table, now)
        ended = self.tf_pauser.finish_draining(lambda: self.tf_actuator.in_flight)
        self.tf_reporter.iteration(now)
        # A dict, not a set: ranks must forget in the same order.
        for req in dict.fromkeys([*ended, *self._tf_finished()]):
            aborted = isinstance(req.finished_reason, FINISH_ABORT)
            cut_off = isinstance(req.finished_reason, CUT_OFF)
            self._tf_forget(req, cut_off=cut_off, ended=None if aborted else now)
        self._tf_end_aborted(self.tf_pauser.paused)
        self._tf_drop_lost(running_batch, last_batch)
        if self.tf_lengths_file is not None:
            self.tf_lengths_file.save(local_time())

    def _tf_finished(self) -> list[Any]:
        return [req for req in self.tf_table.active()[0] if req.finished_reason is not None]

    def get_new_batch_prefill(self, running_batch: Any) -> Any:
        """Decide, carry the decision out, and let SGLang's admission see what it offers."""
        with self.tf_effort:
            decision = self._tf_decide(running_batch)
            running_batch = self._tf_rejoined(running_batch)
        body = self.tf_actuator
        follow = decision.mode is Mode.WORKING_SET
        self.is_mixed_chunk = self.tf_mixing.mixes(follow, len(running_batch.reqs))
        if self.tf_mixing.holds(decision.prefill, running_batch, body.offered):
            return NextBatchPlan(batch_to_run=None, running_batch=running_batch)
        self.tf_limits.active = follow
        self.tf_limits.prefill_limit = decision.prefill.limit
        self.tf_limits.align = self.truncation_align_size
        self.tf_limits.recompute = body.recompute
        own_policy = self.policy
        if follow:
            self.policy = self.tf_keep_order
            if body.offered:
                running_batch.batch_is_full = False
        try:
            with self._tf_offering(body.offered):
                plan = super().get_new_batch_prefill(running_batch)
        finally:
            self.policy = own_policy
        if plan.batch_to_run is not None:
            self._tf_began(plan.batch_to_run)
        return plan

    def _tf_began(self, batch: Any) -> None:
        with self.tf_effort:
            self.tf_loader.guard(batch)
            self._tf_started(batch)

    def _should_defer_prefill(self, running_batch: Any) -> bool:
        """Decide also in passes that SGLang keeps for decoding (--prefill-decode-interval)."""
        deferred: bool = super()._should_defer_prefill(running_batch)
        if deferred:
            with self.tf_effort:
                self._tf_decide(running_batch)
        return deferred

    def _tf_decide(self, running_batch: Any) -> Decision:
        """Ask the policy, and carry out what it says."""
        now, body = self.tf_clock.now, self.tf_actuator
        body.begin(running_batch)
        body.growth = self.tf_limits.growth = self.tf_drafts.growth(self.tf_timer)
        body.landed(now)
        state = partial(self.tf_view.state, self.tf_decider.memo, writes=body.writes)
        self.tf_headroom.look(now, len(self.tf_table), state)
        decision = self.tf_decider.decide(now, len(self.tf_table), body.free_share, state)
        if self.tf_agreement is not None:
            self.tf_agreement.decided(decision)
        applied = apply(decision, self.tf_table.phases, body, now)
        report_applied(applied, self.tf_table, self.tf_recorder)
        return decision

    def _tf_started(self, batch: Any) -> None:
        """Streams of a new prefill batch run from now on."""
        decoding = set(batch.decoding_reqs or ())
        resumed = []
        for req in batch.reqs:
            if req in decoding or req not in self.tf_table:
                continue
            if req in self.tf_pauser.paused:
                report_resumed(req, loaded_tokens(req), self.tf_recorder)
            self.tf_writer.started(req)
            if req.output_ids:
                resumed.append(req)
            if not self.tf_table.phases.is_in(self.tf_table.slot(req), Phase.RUNNING):
                self.tf_table.move(req, Phase.RUNNING, self.tf_clock.now)
        self.tf_pauser.resume(batch.reqs)
        for req in resumed:
            self.tf_paused_time.end(req)
        if resumed:
            rebuild_rows(batch, resumed, overlap=self.enable_overlap)

    def update_running_batch(self, batch: Any) -> Any:
        """Skip a decode step whose memory is on its way, instead of throwing streams out for it.

        KV of draining streams, and what is being copied, is locked for a few steps. SGLang would
        retract every other stream, and end the last one with "out of memory". Streams that are
        loaded in part give way first.
        """
        short = not batch.is_empty() and not batch.check_decode_mem()
        if short and self.tf_actuator.give_way(self.tf_clock.now):
            short = not batch.check_decode_mem()
        coming = short and self.tf_actuator.memory_is_coming(batch)
        return None if coming else super().update_running_batch(batch)

    def get_prefill_adder_class(self) -> Any:
        """The adder that admits by need while the policy decides."""
        return self._tf_with_restorations(self.tf_adder)
