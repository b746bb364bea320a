"""SGLang's scheduler that restores prefixes from both sides: `--tokenflow-restore auto`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from sglang.srt.managers.schedule_policy import CacheAgnosticPolicy
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.runtime_context import get_parallel

from tokenflow_sgl.costs import StepCosts, StepTimer, Work
from tokenflow_sgl.costs.model import prefix_of
from tokenflow_sgl.engine.batch_work import work_of
from tokenflow_sgl.engine.config import restoring_planner
from tokenflow_sgl.engine.ranks import decides_alone, place_in_group
from tokenflow_sgl.engine.restore.leader_figures import Measured
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restore_adder import restoring_adder
from tokenflow_sgl.engine.restore.restore_hooks import attach_restorations
from tokenflow_sgl.engine.restore.split_prefill import layers_of, split_of
from tokenflow_sgl.engine.restore.splitting_scheduler import SplittingScheduler
from tokenflow_sgl.engine.restore.utilisation import Utilisation
from tokenflow_sgl.engine.shared_clock import local_time
from tokenflow_sgl.engine.telemetry.decision_log import DecisionLog
from tokenflow_sgl.engine.unsupported import check_prefill

UNKNOWN = -1.0
"""What ranks tell each other of a figure that is not known yet."""


class RestoringScheduler(SplittingScheduler):
    """Restorations in SGLang's loop; without `--tokenflow-restore` there are none.

    Subclasses say what steps cost (`_tf_costs`).
    """

    # SGLang's own, which this class also assigns.
    waiting_queue: list[Any]

    tf_restoring_adder: Any = None

    @cached_property
    def tf_alone(self) -> bool:
        """No other rank has to come to the same decisions, so this one's clock will do."""
        return decides_alone(get_parallel())

    def init_metrics_collector(self) -> None:
        """Say how busy device and link are while prefixes are restored."""
        super().init_metrics_collector()
        self.tf_utilisation = Utilisation(self.tf_recorder)

    def _tf_restore(self, planner: str, log: DecisionLog | None = None) -> None:
        """From now on prefixes are restored from both sides, as a planner of this name says."""
        check_prefill(self.chunked_prefill_size)
        self.tf_restorations = Restorations(
            self.tree_cache,
            int(self.chunked_prefill_size),
            make_planner(planner),
            RestorationRecord(self.tf_recorder, log),
            self._prefetch_kvcache,
            layers_of(self),
            self._tf_admission,
        )
        attach_restorations(self.tree_cache, self.tf_restorations)

    def _tf_admission(self) -> Sequence[Any] | None:
        """The requests that wait, as SGLang's policy has sorted them; None: first come first."""
        sorts = self.policy.policy is not CacheAgnosticPolicy.FCFS
        return self.waiting_queue if sorts or self.enable_priority_scheduling else None

    def _tf_costs(self) -> StepCosts:
        raise NotImplementedError

    def _tf_lag(self) -> int:
        """Iterations between a step's launch and the one that waits for it; see StepTimer."""
        synchronous = self.device == "cpu" and type(self.forward_stream).__module__.startswith(
            "torch."
        )
        return 1 if self.enable_overlap and not synchronous else 0

    # ---- fetches begin --------------------------------------------------------------

    def _prefetch_kvcache(self, req: Any, storage_hit_end: int | None = None) -> Any:
        said = super()._prefetch_kvcache(req, storage_hit_end)
        if self.tf_restorations is not None and self.enable_hicache_storage:
            self.tf_restorations.watch(req)
        return said

    # ---- each pass ------------------------------------------------------------------

    def _process_hicache_events(self, *args: Any, **kwargs: Any) -> None:
        """Behind SGLang's look at its copies: what has arrived decides what is computed next."""
        super()._process_hicache_events(*args, **kwargs)
        restorations = self.tf_restorations
        if restorations is None or not restorations.any:
            self.tf_utilisation.rest()
            return
        decoding = 2 * len(self.running_batch.reqs) * int(self.page_size)  # one step ahead
        needed = decoding + int(self.chunked_prefill_size)
        req = self.chunked_req
        measured = self._tf_measured(restorations)
        restorations.begin_pass(measured, needed, req)
        self.tf_utilisation.look(measured.now, measured.step_end, restorations.rate.seconds)
        restorations.release_layers(self._tf_least)
        if self.tf_split is not None:
            return
        if req is None or req is self._pending_chunked_abort_req or req.to_finish is not None:
            return
        if restorations.next_chunk(req) == 0:
            self.chunked_req = None
            self._tf_back_to_queue(req)

    def _tf_measured(self, restorations: Restorations) -> Measured:
        """The leader's figures, on all ranks."""
        costs = self._tf_costs()
        rate = restorations.rate.rate
        said = [
            local_time(),
            UNKNOWN if math.isnan(rate) else rate,
            self.tf_step_end,
            costs.decode_seconds(1, 0),
            *(costs.prefill or (UNKNOWN,) * 3),
        ]
        if not self.tf_alone:
            leads = place_in_group(get_parallel()) == 0
            figures = torch.tensor(said if leads else [math.inf] * len(said), dtype=torch.float64)
            self.tree_cache._all_reduce(figures, torch.distributed.ReduceOp.MIN)
            said = figures.tolist()
        now, rate, step_end, shortest, *prefill = said
        known = prefill[0] != UNKNOWN
        return Measured(
            now,
            math.nan if rate == UNKNOWN else rate,
            step_end,
            (prefill[0], prefill[1], prefill[2]) if known else None,
            shortest,
        )

    def _tf_least(self, number: int) -> int:
        """Of all ranks' numbers."""
        if self.tf_alone:
            return number
        least = torch.tensor(number)
        self.tree_cache._all_reduce(least, torch.distributed.ReduceOp.MIN)
        return int(least)

    def pause_generation(self, recv_req: Any) -> None:
        """Keep no tail for a head that does not go on."""
        super().pause_generation(recv_req)
        if self.tf_restorations is not None:
            self.tf_restorations.pause()

    def continue_generation(self, recv_req: Any) -> None:
        """Restore again."""
        super().continue_generation(recv_req)
        if self.tf_restorations is not None:
            self.tf_restorations.go_on()

    def _record_scheduler_state_for_paused_engine(self) -> None:
        """Go on to acknowledge copies and fetches, as the loop does: a flush waits for them."""
        super()._record_scheduler_state_for_paused_engine()
        if self.enable_hierarchical_cache:
            self.tree_cache.check_hicache_events()
        if self.tf_restorations is not None:
            self.tf_restorations.release_layers(self._tf_least)

    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        """A fetch is work until SGLang's threads have ended it, also one that was dropped."""
        idle: bool = super().is_fully_idle(for_health_check, ignore_waiting)
        if for_health_check or self.tf_restorations is None:
            return idle
        return idle and not self.tf_restorations.busy

    def flush_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Hold no device memory: all of it is free after a flush."""
        idle = self.is_fully_idle(ignore_waiting=self._engine_paused)  # else it will be refused
        if self.tf_restorations is not None and idle:
            self.tf_restorations.copy_memory.give_back()
        return super().flush_cache(*args, **kwargs)

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Note when the step that is launched will have ended."""
        some = self.tf_restorations is not None and self.tf_restorations.any
        if some:
            # What was begun and waits for its tail is not to wait for another request's end.
            running_batch.batch_is_full = False
        plan = super().get_next_batch_to_run(running_batch, last_batch)
        batch = plan.batch_to_run
        if some and (batch is None or split_of(batch) is None):
            self._tf_takes(seconds_of(work_of(batch, crowded=False), self._tf_costs()))
        return plan

    def _tf_back_to_queue(self, req: Any) -> None:
        """A request's head is computed, its last chunk may still run: it waits for its tail.

        Its row is free, its KV in the prefix tree. What SGLang counts of chunks in flight stays.
        """
        checkpoint_kv_cache(req, self.tree_cache)
        release_kv_cache(req, self.tree_cache, checkpoint=False)
        kept = {name: getattr(req, name) for name in _KEPT}
        req.reset_for_retract()
        for name, value in kept.items():
            setattr(req, name, value)
        self._tf_requeue(req)

    def _tf_requeue(self, req: Any) -> None:
        self.waiting_queue.insert(0, req)

    def _tf_with_restorations(self, adder: Any) -> Any:
        """The adder like this one whose chunks end where the tail begins."""
        if self.tf_restorations is None:
            return adder
        if self.tf_restoring_adder is None:
            align = self.truncation_align_size
            self.tf_restoring_adder = restoring_adder(
                adder, self.tf_restorations, align, self._tf_unmix
            )
        return self.tf_restoring_adder


_KEPT = (
    "inflight_middle_chunks",
    "retraction_count",
    "is_retracted",
    "retracted_stain",
    "already_computed",
)
"""What a retraction changes of a request and a restoration does not: SGLang's chunks in flight, and
its accounting of what came from a cache."""


def seconds_of(work: Work | None, costs: StepCosts) -> float:
    """Of a step with this work; 0.0 while unknown."""
    if work is None:
        return 0.0
    if not work.tokens:
        return costs.decode_seconds(work.decoding, work.context)
    return costs.prefill_seconds(work.tokens, prefix_of(work.tokens, work.attention))


class StockRestoringScheduler(RestoringScheduler):
    """SGLang's own policy, with restorations."""

    def init_schedule_policy(self) -> None:
        """Build what measures the steps."""
        super().init_schedule_policy()
        self.tf_timer = StepTimer(lag=self._tf_lag())
        self._tf_restore(restoring_planner(self.server_args))

    def _tf_costs(self) -> StepCosts:
        return self.tf_timer.costs()

    def get_next_batch_to_run(self, running_batch: Any, last_batch: Any) -> Any:
        """Time the steps."""
        self.tf_timer.begin(local_time())
        plan = super().get_next_batch_to_run(running_batch, last_batch)
        self.tf_timer.launch(self._tf_work(plan.batch_to_run, crowded=False))
        return plan

    def get_prefill_adder_class(self) -> Any:
        """SGLang's, for restorations."""
        return self._tf_with_restorations(super().get_prefill_adder_class())
