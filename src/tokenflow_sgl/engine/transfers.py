"""Measures HiCache's copies between device and host memory."""

from __future__ import annotations

from typing import Any

from tokenflow_sgl.costs import Link, Links, TransferRate
from tokenflow_sgl.engine.clock import SharedClock, device_time


class TransferWatch:
    """Measures HiCache's copies as they end; only the leader's measurements count."""

    def __init__(self, controller: Any) -> None:
        self._controller = controller
        self._rates = TransferRate(), TransferRate()
        self._seen: tuple[list[Any], list[Any]] = ([], [])

    def look(self) -> tuple[float, float]:
        """Tokens per second to the host and back, by the copies that have ended so far."""
        if self._controller is not None:
            queues = self._controller.ack_write_queue, self._controller.ack_load_queue
            for rate, seen, queue in zip(self._rates, self._seen, queues, strict=True):
                ended = [ack for ack in queue if ack.timing_enabled and ack.finish_event.query()]
                for ack in ended:
                    if not any(ack is other for other in seen):
                        seconds = ack.start_event.elapsed_time(ack.finish_event) / 1e3
                        rate.observe(int(ack.num_tokens), device_time(seconds))
                seen[:] = ended
        return self._rates[0].rate, self._rates[1].rate

    def links(self, clock: SharedClock) -> Links:
        """What all ranks know: the leader's rates, and the queues, which are everywhere alike."""
        if self._controller is None:
            return Links()
        controller = self._controller
        storing = sum(int(ack.num_tokens) for ack in controller.ack_write_queue)
        storing += sum(len(copy.device_indices) for copy in controller.write_queue)
        return Links(Link(clock.store_rate, storing), Link(clock.load_rate))
