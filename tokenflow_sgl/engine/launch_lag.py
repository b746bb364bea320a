"""How far SGLang's loop is ahead of its device."""

from __future__ import annotations

from sglang.srt.platforms import current_platform

from tokenflow_sgl.engine.sglang.worker import LiveScheduler


def launch_lag(scheduler: LiveScheduler) -> int:
    """Iterations between a step's launch and the iteration that waits for it, as of `StepTimer`.

    0 without overlap scheduling, and where a launch returns when all is computed: as on the CPU,
    unless the platform says of itself that it `launches_ahead`.

    Args:
        scheduler: SGLang's.
    """
    ahead = bool(getattr(current_platform, "launches_ahead", scheduler.device != "cpu"))
    return 1 if scheduler.enable_overlap and ahead else 0
