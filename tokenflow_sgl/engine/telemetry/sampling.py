"""Turns each iteration's progress into metrics and step measurements."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from tokenflow_sgl.contract import Mode, Phase
from tokenflow_sgl.costs import StepTimer
from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.telemetry.prometheus import Levels, Recorder
from tokenflow_sgl.engine.telemetry.tally import Tally
from tokenflow_sgl.lifecycle.first_text import last_first_text
from tokenflow_sgl.lifecycle.reader_updates import pass_on_the_rest
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.qos import noticed

SAMPLE_SECONDS = 1.0
"""How often counts are handed on, and levels and buffers sampled."""


class Effort:
    """Time that goes into this package: `with effort: ...` around everything that it adds.

    Only passes with work count. An idle engine goes round its loop thousands of times per second;
    what that takes is taken from no stream.
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._this_pass = 0.0
        self._entered = 0.0

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *_error: object) -> None:
        self._this_pass += time.perf_counter() - self._entered

    def end_pass(self, *, worked: bool) -> None:
        """The pass is over; `worked`: the engine has something to compute."""
        if worked:
            self._seconds += self._this_pass
        self._this_pass = 0.0

    def take(self) -> float:
        """Seconds of passes that ended since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds


class DeliveryReporter:
    """Accounts the deliveries of one scheduler."""

    def __init__(
        self, table: StreamTable[Any], recorder: Recorder, timer: StepTimer, effort: Effort
    ) -> None:
        self._table = table
        self._recorder = recorder
        self._timer = timer
        self._effort = effort
        self._tally = Tally(table, recorder)
        self._sampled = -np.inf

    def iteration(self, now: float) -> None:
        """Deliver what the last step produced, and report it."""
        if not len(self._table):
            if self._sampled > -np.inf:
                # The clock stands still while nothing is served: say so once.
                self._hand_on()
                self._recorder.levels(Levels(capacity=self._timer.throughput()))
                self._recorder.policy_pass(Mode.IDLE, 0.0)
                self._sample_tenants()
                self._sample_buffers(now)
                self._sampled = -np.inf
            return
        progress = self._table.collect(now)
        self._timer.produced(now, progress.produced)
        self._timer.accepted(self._timer.decoded, progress.produced)
        if not self._recorder.listens:
            return
        self._tally.add(progress, now)
        if now - self._sampled >= SAMPLE_SECONDS:
            self._sampled = now
            self._hand_on()
            self._sample(now)

    def leaves(self, request: Req, ended: float | None) -> None:
        """A stream is about to be forgotten; `ended`: when its answer did, None: it was cut off."""
        if not self._recorder.listens:
            return
        slot = self._table.slot(request)
        if ended is not None and pass_on_the_rest(self._table, request, ended):
            self._tally.add(self._table.collect(ended), ended)
        self._tally.add_given_up(slot)
        seconds = last_first_text(self._table, request)
        if seconds is not None:
            self._tally.add_first_texts(np.array([slot]), np.array([seconds]))
        if ended is None:
            return
        deadline = float(self._table.deadline[slot])
        if not math.isnan(deadline):
            kept = ended - float(self._table.readers.arrival[slot]) <= deadline
            self._recorder.count("deadlines_total", 1.0, kept="yes" if kept else "no")
        name, read = self._table.qos_class(slot), self._table.streaming[slot]
        if self._table.readers.started[slot] and read and name not in self._table.unread:
            self._recorder.finished(name, bool(self._table.readers.stall_count[slot]))

    def _hand_on(self) -> None:
        self._tally.hand_on()
        self._recorder.count("scheduling_seconds_total", self._effort.take())
        for reason, rests in self._table.rests.take_ended().items():
            self._recorder.count("rests_ended_total", rests, reason=reason)

    def _sample(self, now: float) -> None:
        table = self._table
        slots = table.order()
        phase = table.phases.phase[slots]
        number = np.bincount(phase, minlength=len(Phase))
        waiting = phase == Phase.WAITING.value
        member = ~waiting | table.phases.admitted[slots]
        read = member & table.streaming[slots] & ~table.readers.resting[slots]
        self._recorder.levels(
            Levels(
                running=int(number[Phase.RUNNING] + number[Phase.DRAINING]),
                paused=int(number[Phase.PAUSED] + number[Phase.LOADING]),
                waiting=int(number[Phase.WAITING]),
                working_set=int(np.count_nonzero(member)),
                demand=float(table.readers.rate[slots[read]].sum()),
                capacity=self._timer.throughput(),
            )
        )
        self._sample_tenants()
        self._sample_buffers(now)

    def _sample_tenants(self) -> None:
        """Sample what each tenant has that the operator named, and all others together."""
        table = self._table
        if table.tenants is None:
            return
        slots = table.order()
        length = table.prompt.take(slots) + table.generated.take(slots)
        runs = table.phases.phase.take(slots) == Phase.RUNNING.value
        held = np.where(runs, length, 0)
        for name, numbers in table.tenants.by_name().items():
            own = np.isin(table.tenant.take(slots), numbers)
            share = float(held[own].sum()) / max(int(held.sum()), 1)
            self._recorder.tenant(name, int(np.count_nonzero(own)), share)

    def _sample_buffers(self, now: float) -> None:
        """Sample the buffers of every class that ever was: without streams no reader stalls."""
        table = self._table
        slots = table.order()
        readers = table.readers
        follows = readers.started[slots] & table.streaming[slots] & ~readers.resting[slots]
        reading = slots[follows]
        buffers = table.readers.buffer_seconds(reading, now)
        late = noticed(-table.readers.slack(reading, now), table.readers.threshold[reading])
        number = table.class_number[reading]
        for each, name in enumerate(table.class_names):
            if name in table.unread:
                continue
            mine = number == each
            self._recorder.buffers(name, buffers[mine], int(np.count_nonzero(late & mine)))
