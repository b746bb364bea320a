"""Turns each iteration's progress into metrics and step measurements."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.metrics import Recorder
from tokenflow_sgl.engine.tracking import Progress, StreamTable
from tokenflow_sgl.policy import Mode, Phase

SAMPLE_SECONDS = 1.0
"""How often levels and buffers are sampled."""


class Effort:
    """Time that goes into this package: `with effort: ...` around everything that it adds."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._entered = 0.0

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._seconds += time.perf_counter() - self._entered

    def take(self) -> float:
        """Seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class Reporter:
    """Accounts the deliveries of one scheduler."""

    def __init__(
        self, table: StreamTable[Any], recorder: Recorder, timer: StepTimer, effort: Effort
    ) -> None:
        self._table = table
        self._recorder = recorder
        self._timer = timer
        self._effort = effort
        self._sampled = -np.inf

    def iteration(self, now: float) -> None:
        """Deliver what the last step produced, and report it."""
        if not len(self._table):
            if self._sampled > -np.inf:
                # The clock stands still while nobody is served: say so once.
                self._recorder.spent(self._effort.take())
                self._recorder.levels(running=0, paused=0, waiting=0, working_set=0)
                self._recorder.policy_pass(Mode.IDLE, 0.0)
                self._sampled = -np.inf
            return
        progress = self._table.collect(now)
        self._timer.produced(now, int(progress.counts.sum()))
        self._report_delivery(progress)
        if now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            self._sample(now)

    def _report_delivery(self, progress: Progress) -> None:
        delivery = progress.delivery
        got = np.nonzero(progress.counts > 0)[0]
        if not len(got):
            return
        classes = [self._table.qos_class(slot) for slot in progress.slots[got].tolist()]
        for name in set(classes):
            mine = got[[each == name for each in classes]]
            self._recorder.delivered(
                name,
                effective=float(delivery.effective[mine].sum()),
                stalls=int(np.count_nonzero(delivery.was_stall[mine])),
                seconds=float(delivery.stalled[mine].sum()),
            )

    def _sample(self, now: float) -> None:
        self._recorder.spent(self._effort.take())
        table = self._table
        slots = table.order()
        phase = table.phase[slots]
        waiting = phase == Phase.WAITING
        self._recorder.levels(
            running=int(np.count_nonzero((phase == Phase.RUNNING) | (phase == Phase.DRAINING))),
            paused=int(np.count_nonzero(phase >= Phase.PAUSED)),
            waiting=int(np.count_nonzero(waiting)),
            working_set=int(np.count_nonzero(~waiting | table.admitted[slots])),
        )
        reading = slots[table.generated[slots] > 0]
        buffers = table.readers.buffer_seconds(reading, now).tolist()
        for slot, seconds in zip(reading.tolist(), buffers, strict=True):
            self._recorder.buffer(table.qos_class(slot), seconds)
