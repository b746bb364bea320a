"""SGLang's admission under the policy: what of its queue it sees, and how much it may admit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.srt.managers.schedule_batch import NextBatchPlan
from sglang.srt.managers.schedule_policy import CacheAgnosticPolicy, SchedulePolicy

from tokenflow_sgl.contract import Decision, Mode
from tokenflow_sgl.engine.body.unified import UnifiedBody
from tokenflow_sgl.engine.config import TokenFlowConfig
from tokenflow_sgl.engine.extension import Prefill
from tokenflow_sgl.engine.mixing import Mixing
from tokenflow_sgl.engine.prefill_adder import AdmissionLimits
from tokenflow_sgl.engine.sglang.batch import ReqBatch
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler


class OfferedQueue:
    """SGLang's queue while its admission sees only a part of it; all else sees the whole.

    Args:
        scheduler: SGLang's.
    """

    def __init__(self, scheduler: LiveScheduler) -> None:
        self._scheduler = scheduler
        self._whole: list[Any] | None = None  # while admission sees only what is offered
        self._offered: frozenset[Any] = frozenset()

    @contextmanager
    def only(self, offered: list[Req]) -> Iterator[None]:
        """SGLang's admission sees `offered`; what it admits leaves the whole queue."""
        scheduler = self._scheduler
        self._whole, self._offered = scheduler.waiting_queue, frozenset(offered)
        scheduler.waiting_queue = offered
        try:
            yield
        finally:
            scheduler.waiting_queue, self._whole = self.waiting(), None

    def waiting(self) -> list[Any]:
        """The whole queue at any time."""
        queue: list[Any] = self._scheduler.waiting_queue
        if self._whole is None:
            return queue
        taken = self._offered.difference(queue)
        return [req for req in self._whole if req not in taken] if taken else self._whole

    @contextmanager
    def whole(self) -> Iterator[list[Any]]:
        """Puts the whole queue back meanwhile.

        What SGLang queues then (its grammar is ready) counts against the whole queue's limit. A
        request that SGLang turns away for it is not offered any more.
        """
        scheduler = self._scheduler
        if self._whole is None:
            yield scheduler.waiting_queue
            return
        offered, scheduler.waiting_queue = scheduler.waiting_queue, self._whole
        before = set(self._whole)
        try:
            yield scheduler.waiting_queue
        finally:
            self._whole, scheduler.waiting_queue = scheduler.waiting_queue, offered
            if turned_away := before.difference(self._whole):
                offered[:] = [req for req in offered if req not in turned_away]


class PolicedAdmission:
    """How SGLang admits prefills while the policy decides.

    Args:
        scheduler: SGLang's.
        body: Offers requests.
        config: Ours.

    Attributes:
        limits: What the class that admits obeys.
        queue: SGLang's, of which its admission sees what is offered.
    """

    def __init__(
        self, scheduler: LiveScheduler, body: UnifiedBody, config: TokenFlowConfig
    ) -> None:
        self._scheduler = scheduler
        self._body = body
        self._mixing = Mixing(scheduler, config)
        self.limits = AdmissionLimits()
        self.queue = OfferedQueue(scheduler)
        self.adder = body.adder(self.limits)
        # The decision's order must survive SGLang's own sorting of the queue.
        self._keep_order = SchedulePolicy(
            "fcfs", scheduler.tree_cache, scheduler.enable_hierarchical_cache, False, False
        )

    def prefill(self, decision: Decision, running_batch: ReqBatch, choose: Prefill) -> Any:
        """SGLang's plan for the next prefill, of what is offered and as far as it is limited.

        Args:
            decision: That was carried out.
            running_batch: Of the streams that decode.
            choose: SGLang's.
        """
        scheduler, body, limits = self._scheduler, self._body, self.limits
        follow = decision.mode is Mode.WORKING_SET
        scheduler.is_mixed_chunk = self._mixing.mixes(follow, len(running_batch.reqs))
        if self._mixing.holds(decision.prefill, running_batch, body.offered):
            return NextBatchPlan(batch_to_run=None, running_batch=running_batch)
        limits.active = follow
        limits.prefill_limit = decision.prefill.limit
        limits.begun = decision.prefill.begun
        limits.align = scheduler.truncation_align_size
        limits.recompute = body.recompute
        own_policy = scheduler.policy
        if follow:
            scheduler.policy = self._keep_order
            if body.offered:
                running_batch.batch_is_full = False
        try:
            with self.queue.only(body.offered):
                return choose(running_batch)
        finally:
            scheduler.policy = own_policy

    def order(self) -> Sequence[Any] | None:
        """Waiting requests in the order of their admission; None: first come, first served.

        As they were offered last: in the policy's order, or as SGLang has sorted them.
        """
        queue = self._scheduler.waiting_queue
        if sorted_queue(self._scheduler) is None and not self._body.chosen:
            return None
        waiting = dict.fromkeys(queue)
        offered = (req for req in self._body.offered if req in waiting)
        return [*dict.fromkeys((*offered, *waiting))]


def sorted_queue(scheduler: LiveScheduler) -> Sequence[Any] | None:
    """The requests that wait, as SGLang's policy has sorted them; None: first come first."""
    sorts = scheduler.policy.policy is not CacheAgnosticPolicy.FCFS
    queue: list[Any] = scheduler.waiting_queue
    return queue if sorts or scheduler.enable_priority_scheduling else None
