"""Carries decisions out on a decode server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenflow_sgl.contract import Preempt
from tokenflow_sgl.engine.actuator import EngineActuator
from tokenflow_sgl.engine.decode_server.decode_pauser import DecodePauser
from tokenflow_sgl.engine.queue_index import QueueIndex
from tokenflow_sgl.lifecycle import Missing
from tokenflow_sgl.lifecycle.actuator import Action


class DecodeActuator(EngineActuator):
    """The streams of a decode server.

    A stream waits from its arrival until it has memory here; its KV comes then. Until it is in the
    batch it runs already, in the sense that it holds memory, and cannot be preempted.
    """

    _pauser: DecodePauser
    mirrored = False

    def begin(self, running_batch: Any) -> None:
        """A pass begins, with this batch running."""
        super().begin(running_batch)
        self._pauser.begin(running_batch.reqs)

    @property
    def writes(self) -> bool:
        """No copy is made before a pause."""
        return False

    @property
    def promised(self) -> int:
        """SGLang allocates all that a transfer needs before it begins."""
        return 0

    @property
    def queue(self) -> QueueIndex:
        """What waits in any of SGLang's queues for a place in the batch."""
        scheduler = self._scheduler
        prealloc = scheduler.disagg_decode_prealloc_queue
        before = [each.req for each in prealloc.queue]
        return self._queue.look([*before, *prealloc.held_rebootstrap_reqs, *self.untouchable])

    @property
    def untouchable(self) -> list[Any]:
        """Requests with memory whose KV is on its way, or that are to join the batch."""
        scheduler = self._scheduler
        coming = [each.req for each in scheduler.disagg_decode_transfer_queue.queue]
        return [*coming, *scheduler.waiting_queue]

    def memory_is_coming(self, batch: Any) -> bool:
        """Never waited for: SGLang's loop has no step without a batch there."""
        return False

    def accepts(self, action: Action) -> bool:
        """By what only SGLang's requests, batches and host memory say."""
        if not super().accepts(action):
            return False
        request = self._table.request(action.slot)
        return not isinstance(action, Preempt) or self._pauser.accepts(request)

    def missing(self, slot: int) -> Missing:
        """No load overlaps with decode steps here."""
        return Missing()

    def offer(
        self, slots: Sequence[int] | None, recompute: frozenset[int], hidden: frozenset[int]
    ) -> None:
        """Choose what may be given memory now: paused streams, and those that wait for theirs."""
        prealloc, table = self._scheduler.disagg_decode_prealloc_queue, self._table
        paused = dict.fromkeys(req for req in self._pauser.paused if req.to_finish is None)
        self.chosen = slots is not None
        if slots is None:
            away = set(map(table.request, hidden))
            self.offered = [req for req in sorted(paused, key=table.rank) if req not in away]
            return
        waiting = {each.req for each in prealloc.queue}
        chosen = map(table.request, (slot for slot in slots if slot not in hidden))
        self.offered = [req for req in chosen if req in paused or req in waiting]

    @property
    def busy(self) -> bool:
        """Whether something runs, is about to, or is to be admitted beside the policy's choice."""
        return bool(super().busy or self.untouchable)
