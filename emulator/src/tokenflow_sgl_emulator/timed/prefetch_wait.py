"""How long a request waits for its pages from the storage, by the device's clock."""

from collections.abc import Callable
from typing import Any

from sglang.srt.utils.poll_timer import PollTimer

from tokenflow_sgl_emulator.timed.clock import now
from tokenflow_sgl_emulator.timed.device import dilation


class DeviceTimer(PollTimer):
    """SGLang's timer of a wait, in emulated seconds."""

    def elapsed(self) -> float:
        """Emulated seconds since the first look in vain; 0 where there was none."""
        return 0.0 if self.started_at is None else (now() - self.started_at) / dilation()

    def observe(self, ready: bool) -> float:
        """A look: in vain, or the last one; return what the wait was in the latter case."""
        waited = self.elapsed() if ready else 0.0
        if ready:
            self.started_at = None
        elif self.started_at is None:
            self.started_at = now()
        return waited


def start_prefetch_wait(original: Callable[..., Any], tree: Any, operation: Any) -> None:
    """Around SGLang's start of a wait that has a time limit: the limit is the device's time."""
    original(tree, operation)
    wait = tree._storage_prefetch_wait.get(operation.handle)
    if wait is not None and wait.timer.running and not isinstance(wait.timer, DeviceTimer):
        wait.timer = DeviceTimer(started_at=now())
