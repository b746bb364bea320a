"""SGLang's priority scheduling: what has more goes first, and preempts where a row is missing.

Follows `_sort_by_priority_and_fcfs` and `PrefillAdder.preempt_to_schedule` of SGLang 0.5.23 with
--enable-priority-scheduling and a threshold of 0. Preempted requests lose their KV and queue anew.
Where memory is short, but not rows, SGLang does not preempt: it waits, with the most important
request first in line.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler
from tokenflow_sgl.lab.sim.schedulers.prefill_budget import PrefillBudget


class PriorityScheduler(FcfsScheduler):
    """Larger priorities first; a request without one has the least."""

    def offered(self) -> list[int]:
        """The queue by priority, among equals first come first served."""
        streams = self.core.streams
        return sorted(
            self.core.waiting,
            key=lambda stream: (-streams.priority[stream], streams.phases.since[stream]),
        )

    @property
    def steady(self) -> bool:
        """Every pass looks at the queue: SGLang never remembers that its batch is full here."""
        core = self.core
        return core.chunked is None and not core.waiting

    def rows_for(self, stream: int, budget: PrefillBudget, now: float) -> bool:
        """Preempt those of less priority whose end lies furthest away, until this one fits."""
        core, streams = self.core, self.core.streams
        rows = core.running[streams.priority[core.running] < streams.priority[stream]]
        # Least priority first, the latest to come among equals.
        rows = rows[np.lexsort((-streams.phases.since[rows], streams.priority[rows]))]
        resident, _ = core.memory.match(stream)
        missing: float = self.total(stream) - resident + self.reserved(stream, 0)
        missing += core.options.page_size - budget.total
        victims: list[int] = []
        for victim in rows.tolist():
            victims.append(victim)
            missing -= self._reserved_for(victim)
            if missing <= 0:
                break
        if not victims or missing > 0:
            return False
        for victim in victims:
            budget.give_back(self._reserved_for(victim))
            core.running = core.running[core.running != victim]
            core.park(victim, now, keep=False)
            core.waiting.append(victim)
            streams.phases.move(victim, Phase.WAITING, now)
            self.retracted += 1
        return True

    def _reserved_for(self, stream: int) -> float:
        """Output tokens that are reserved for a running stream."""
        streams = self.core.streams
        left = int(streams.limit[stream] - streams.generated[stream])
        return min(left, self.core.options.clip_max_new_tokens) * self.ratio
