"""Measures HiCache's copies between device and host memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from tokenflow_sgl.costs import Links, MeasuredLink, TransferRate
from tokenflow_sgl.engine.sglang.controller import CopyAck, QueuedCopy
from tokenflow_sgl.engine.shared_clock import SharedClock, device_time
from tokenflow_sgl.engine.telemetry.prometheus import Recorder


class Direction:
    """Copies one way: their rate, and what has not landed yet."""

    def __init__(self, name: str, recorder: Recorder) -> None:
        self._name = name
        self._recorder = recorder
        self._rate = TransferRate()
        self._seen: list[Any] = []
        self._told = (math.nan, 0)

    @property
    def busy(self) -> bool:
        """Whether copies that were told have not landed as far as is known."""
        return self._told[1] > 0

    def look(self, acks: Sequence[CopyAck]) -> float:
        """Take in what has landed; `acks` are SGLang's, of copies that it has not looked after.

        Returns tokens per second, NaN while unknown.
        """
        ended = [ack for ack in acks if ack.timing_enabled and ack.finish_event.query()]
        for ack in ended:
            if not any(ack is other for other in self._seen):
                seconds = device_time(ack.start_event.elapsed_time(ack.finish_event) / 1e3)
                self._rate.observe(int(ack.num_tokens), seconds)
        self._seen = ended
        rate = self._rate.rate
        told = rate, tokens_of(acks) - tokens_of(ended)
        if told != self._told and not math.isnan(rate):
            self._told = told
            self._recorder.link(self._name, *told)
        return rate


class MeasuredCopies(Protocol):
    """What has copies that end: HiCache's controller, or a decode server's loads."""

    @property
    def ack_load_queue(self) -> Sequence[CopyAck]:
        """Copies to the device that were submitted."""

    @property
    def ack_write_queue(self) -> Sequence[CopyAck]:
        """Copies to the host that were submitted."""

    @property
    def write_queue(self) -> Sequence[QueuedCopy]:
        """Copies to the host that were not."""


class TransferWatch:
    """Measures HiCache's copies as they end; only the leader's measurements count."""

    def __init__(self, controller: MeasuredCopies | None, recorder: Recorder) -> None:
        self._controller = controller
        self._store, self._load = Direction("store", recorder), Direction("load", recorder)

    def look(self) -> tuple[float, float]:
        """Tokens per second to the host and back, by the copies that have ended so far."""
        if self._controller is None:
            return math.nan, math.nan
        controller = self._controller
        return self._store.look(controller.ack_write_queue), self._load.look(
            controller.ack_load_queue
        )

    def settle(self) -> None:
        """Nothing is served: look only after copies that were under way when it last was."""
        if self._store.busy or self._load.busy:
            self.look()

    def links(self, clock: SharedClock) -> Links:
        """What all ranks know: the leader's rates, and the queues, which are everywhere alike."""
        if self._controller is None:
            return Links()
        controller = self._controller
        storing = tokens_of(controller.ack_write_queue)
        storing += sum(len(copy.device_indices) for copy in controller.write_queue)
        return Links(MeasuredLink(clock.store_rate, storing), MeasuredLink(clock.load_rate))


def tokens_of(acks: Sequence[CopyAck]) -> int:
    """KV tokens of these copies."""
    return sum(int(ack.num_tokens) for ack in acks)
