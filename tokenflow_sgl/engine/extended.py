"""SGLang's own scheduler with extensions beside it: `--tokenflow-restore`, `--tokenflow-layerwise`.

The same moments as in `shell`, without a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.managers.scheduler import Scheduler

from tokenflow_sgl.costs import StepCosts, StepTimer
from tokenflow_sgl.engine.admission import sorted_queue
from tokenflow_sgl.engine.announcement import announcement
from tokenflow_sgl.engine.batch_work import work_of
from tokenflow_sgl.engine.extension import Extensions
from tokenflow_sgl.engine.features import features_on
from tokenflow_sgl.engine.launch_lag import launch_lag
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.overriding import overrides
from tokenflow_sgl.engine.sglang.release import said
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler
from tokenflow_sgl.engine.shared_clock import local_time
from tokenflow_sgl.engine.telemetry.decision_log import DecisionLog
from tokenflow_sgl.engine.telemetry.prometheus import recorder_of
from tokenflow_sgl.lifecycle.table import StreamTable


class Beside:
    """The extensions of one scheduler of SGLang's, and what they ask of it (`extension.Host`).

    Args:
        scheduler: SGLang's, which has its memory.
    """

    log: DecisionLog | None = None
    table: StreamTable[Any] | None = None

    def __init__(self, scheduler: LiveScheduler) -> None:
        self.scheduler = scheduler
        self.recorder = recorder_of(scheduler)
        self.extensions = Extensions()
        self._timer = StepTimer(lag=launch_lag(scheduler))
        for feature in features_on(scheduler.server_args):
            self.extensions.add(feature.build(self))

    def costs(self) -> StepCosts:
        """What steps cost, as learned so far."""
        return self._timer.costs()

    def admission(self) -> Sequence[Any] | None:
        """Waiting requests in the order in which SGLang admits them; None: first come first."""
        return sorted_queue(self.scheduler)

    def prefill_began(self, batch: ReqBatch) -> None:
        """Nothing is kept of requests here."""

    def requeue(self, req: Req) -> None:
        """A request whose prefill an extension has interrupted waits again, before all others."""
        self.scheduler.waiting_queue.insert(0, req)

    def next_batch(self, running_batch: ReqBatch, last_batch: ReqBatch | None, choose: Any) -> Any:
        """Time the steps that SGLang chooses."""
        self._timer.begin(local_time())
        self.extensions.pass_begins(running_batch)
        plan = choose(running_batch, last_batch)
        self.extensions.launched(plan)
        batch = plan.batch_to_run
        partly = self.extensions.computes_beside(batch)
        self._timer.launch(None if partly else work_of(batch, crowded=False))
        return plan


class ExtendedScheduler(Scheduler):  # type: ignore[misc]
    """What options of ours that need no policy put in place of SGLang's scheduler."""

    tokenflow: Beside
    """All that is ours."""

    @overrides("builds the extensions, when SGLang has its model, its memory and its own policy")
    def init_schedule_policy(self) -> None:
        super().init_schedule_policy()
        self.tokenflow = Beside(self)

    @overrides("says that the scheduler is ours, now that all of it is built")
    def get_init_info(self) -> dict[str, Any]:
        return said(super().get_init_info(), announcement(type(self)))

    @overrides("times the steps")
    def get_next_batch_to_run(self, running_batch: ReqBatch, last_batch: ReqBatch | None) -> Any:
        return self.tokenflow.next_batch(running_batch, last_batch, super().get_next_batch_to_run)

    @overrides("an extension may go on with a prefill of its own")
    def get_new_batch_prefill(self, running_batch: ReqBatch) -> Any:
        return self.tokenflow.extensions.prefill(running_batch, super().get_new_batch_prefill)

    @overrides("extensions admit their requests")
    def get_prefill_adder_class(self) -> Any:
        return self.tokenflow.extensions.wrap_adder(super().get_prefill_adder_class())

    @overrides("extensions end their copies: the weights may change")
    def pause_generation(self, recv_req: Any) -> None:
        with self.tokenflow.extensions.engine_pauses():
            super().pause_generation(recv_req)

    @overrides("what extensions have under way is work")
    def is_fully_idle(self, for_health_check: bool = False, ignore_waiting: bool = False) -> bool:
        return bool(super().is_fully_idle(for_health_check, ignore_waiting)) and (
            for_health_check or self.tokenflow.extensions.idle
        )

    @overrides("acknowledges copies while the engine is paused, as the loop does")
    def _record_scheduler_state_for_paused_engine(self) -> None:
        super()._record_scheduler_state_for_paused_engine()
        if self.enable_hierarchical_cache:
            self.tree_cache.check_hicache_events()
        self.tokenflow.extensions.while_paused()
