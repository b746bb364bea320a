"""SGLang's priority scheduling under the policy: what it calls urgent the policy sees as urgent.

While our scheduler serves, SGLang preempts nothing by priority: KV that it takes from a stream is
lost. The policy gets the priorities and decides which streams run. Where all streams fit, there is
nothing to decide, and SGLang's own order of the queue holds, by priority.
"""

from __future__ import annotations

from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.worker import LiveScheduler


def take_over_priorities(scheduler: LiveScheduler) -> None:
    """Switch SGLang's own preemption by priority off, once it has read its options."""
    scheduler.enable_priority_preemption = False


def shown_priority(scheduler: LiveScheduler, req: Req) -> int:
    """A request's priority as policies see it: larger is more urgent; 0 where none count.

    A request that states none has got SGLang's least, or --default-priority-value.
    """
    if not scheduler.enable_priority_scheduling:
        return 0
    sign = -1 if scheduler.schedule_low_priority_values_first else 1
    return sign * int(req.priority)
