"""Counts what readers got, per rate class, and hands it on once a second.

A Prometheus counter costs some microseconds each time; with hundreds of streams that would be
paid for every token. Here a step costs a few numpy calls, however many streams it served.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tokenflow_sgl.engine.metrics import Recorder
from tokenflow_sgl.engine.tracking import Progress, StreamTable

SUMS = {
    "tokens": "output_tokens_total",
    "effective": "effective_tokens_total",
    "stalls": "stalls_total",
    "stalled": "stall_seconds_total",
}
"""What is summed, and the counter that it goes to."""


class Tally:
    """What has not been handed on yet."""

    def __init__(self, table: StreamTable[Any], recorder: Recorder) -> None:
        self._table = table
        self._recorder = recorder
        self._sums: dict[str, np.ndarray[Any, Any]] = {}
        self._gaps: list[tuple[Any, Any, Any]] = []  # of steps: class, seconds, how many
        self._firsts: list[tuple[Any, Any]] = []  # of steps: class, seconds
        self._clear()

    def _clear(self) -> None:
        self._sums = {name: np.zeros(0) for name in SUMS}
        self._gaps, self._firsts = [], []

    def add(self, progress: Progress, now: float) -> None:
        """One step's deliveries."""
        got = np.nonzero(progress.counts > 0)[0]
        if not len(got):
            return
        delivery, slots = progress.delivery, progress.slots[got]
        number = self._table.class_number[slots]
        counts = progress.counts[got]
        self._sum("tokens", number, counts)
        self._sum("effective", number, delivery.effective[got])
        if delivery.was_stall[got].any():
            self._sum("stalls", number, delivery.was_stall[got])
            self._sum("stalled", number, delivery.stalled[got] * delivery.was_stall[got])
        gaps = progress.gaps[got]
        later = ~np.isnan(gaps)
        if later.any():
            self._gaps.append((number[later], gaps[later], np.ones(np.count_nonzero(later))))
        together = counts > 1
        if together.any():
            many = np.count_nonzero(together)
            self._gaps.append((number[together], np.zeros(many), counts[together] - 1))
        if not later.all():
            first = slots[~later]
            waited = now - self._table.readers.arrival[first]
            self._firsts.append((number[~later], np.maximum(waited, 0.0)))

    def _sum(self, name: str, number: Any, values: Any) -> None:
        size = len(self._table.class_names)
        kept = self._sums[name]
        if len(kept) < size:
            kept = np.concatenate([kept, np.zeros(size - len(kept))])
        self._sums[name] = kept + np.bincount(number, weights=values, minlength=size)

    def hand_on(self) -> None:
        """Report what has come together since the last call."""
        for name, counter in SUMS.items():
            sums = self._sums[name].tolist()
            for number, qos_class in enumerate(self._table.class_names):
                # Zeros, too: a series that is not there cannot be reckoned with.
                value = sums[number] if number < len(sums) else 0.0
                self._recorder.count(counter, value, qos_class=qos_class)
        self._observe("tbt_seconds", self._gaps)
        self._observe("ttft_seconds", self._firsts)
        self._clear()

    def _observe(self, histogram: str, steps: list[tuple[Any, ...]]) -> None:
        if not steps:
            return
        number, *rest = (np.concatenate(column) for column in zip(*steps, strict=True))
        for each in np.unique(number).tolist():
            mine = number == each
            name = self._table.class_names[each]
            self._recorder.observe(histogram, *(column[mine] for column in rest), qos_class=name)
