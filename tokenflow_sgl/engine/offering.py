"""SGLang's queue while its admission sees only what the policy offers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.restore.restoring_scheduler import RestoringScheduler


class OfferingScheduler(RestoringScheduler):
    """Admission is offered a part of the queue; whatever else SGLang does sees all of it."""

    tf_actuator: EngineActuator
    tf_whole: list[Any] | None = None
    """SGLang's queue while its admission sees only what is offered."""
    tf_offered: frozenset[Any] = frozenset()

    def _tf_admission(self) -> Sequence[Any] | None:
        """As they were offered last: in the policy's order, or as SGLang has sorted them."""
        if super()._tf_admission() is None and not self.tf_actuator.chosen:
            return None
        waiting = dict.fromkeys(self.waiting_queue)
        offered = (req for req in self.tf_actuator.offered if req in waiting)
        return [*dict.fromkeys((*offered, *waiting))]

    def _tf_rejoined(self, running_batch: Any) -> Any:
        """The running batch, with those that were chosen and need no prefill to go on."""
        return running_batch

    @contextmanager
    def _tf_offering(self, offered: list[Any]) -> Iterator[None]:
        """SGLang's admission sees `offered`; what it admits leaves the whole queue."""
        self.tf_whole, self.tf_offered = self.waiting_queue, frozenset(offered)
        self.waiting_queue = offered
        try:
            yield
        finally:
            self.waiting_queue, self.tf_whole = self._tf_waiting(), None

    def _tf_waiting(self) -> list[Any]:
        """SGLang's queue, whole also while admission sees only what is offered."""
        if self.tf_whole is None:
            return self.waiting_queue
        taken = self.tf_offered.difference(self.waiting_queue)
        return [req for req in self.tf_whole if req not in taken] if taken else self.tf_whole

    @contextmanager
    def _tf_whole_queue(self) -> Iterator[list[Any]]:
        """Puts the whole queue back while admission sees only what is offered.

        What SGLang queues meanwhile (its grammar is ready) counts against the whole queue's limit.
        A request that SGLang turns away for it is not offered any more.
        """
        if self.tf_whole is None:
            yield self.waiting_queue
            return
        offered, self.waiting_queue = self.waiting_queue, self.tf_whole
        before = set(self.tf_whole)
        try:
            yield self.waiting_queue
        finally:
            self.tf_whole, self.waiting_queue = self.waiting_queue, offered
            if turned_away := before.difference(self.tf_whole):
                offered[:] = [req for req in offered if req not in turned_away]
