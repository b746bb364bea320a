"""Earliest deadline first: the queue in the order of deadlines, without preemption.

Optimal where all deadlines can be kept and jobs can be preempted (C. L. Liu and J. W. Layland,
1973); here a request is only chosen from the queue, as SGLang's schedulers do. What has no deadline
counts as one that wants its first token within `TTFT` seconds.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.lab.sim.schedulers.fcfs import FcfsScheduler

TTFT = 2.0
"""Seconds from its arrival that a request without a deadline is given."""


class EarliestDeadlineScheduler(FcfsScheduler):
    """SGLang's scheduler with its queue in the order of deadlines."""

    def offered(self) -> list[int]:
        """The queue by deadline, among equals first come first served."""
        streams = self.core.streams
        waiting = np.array(self.core.waiting, dtype=np.int64)
        given = streams.deadline[waiting]
        due = streams.arrival[waiting] + np.where(np.isnan(given), TTFT, given)
        order: list[int] = waiting[np.argsort(due, kind="stable")].tolist()
        return order
