"""Counts what readers got, per rate class, and hands it on once a second.

A Prometheus counter costs some microseconds each time; with hundreds of streams that would be
paid for every token. Here a step is only noted, and a second of steps is counted at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.terms import NOT_STREAMED
from tokenflow_sgl.lifecycle.first_text import new_first_texts
from tokenflow_sgl.lifecycle.progress import Progress
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.qos.playback import noticed

OF_READERS = frozenset({"effective_tokens_total", "stalls_total", "stall_seconds_total"})
"""Counters that say how a reader fared."""


class Tally:
    """What has not been handed on yet."""

    def __init__(self, table: StreamTable[Any], recorder: Recorder) -> None:
        self._table = table
        self._recorder = recorder
        # Of each step, by stream: class, seconds since its arrival, and what it got.
        self._steps: list[tuple[NDArray[np.int64], NDArray[np.float64], Progress]] = []
        # Of each step, by stream that began: seconds after it was expected to.
        self._late: list[NDArray[np.float64]] = []
        # By stream: class, and seconds to its first text.
        self._texts: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        # Of streams that are gone: class, and seconds of a stall that was not reported yet.
        self._given_up: list[tuple[int, float, bool]] = []

    def add(self, progress: Progress, now: float) -> None:
        """Count the tokens that one step delivered."""
        slots, table = progress.slots, self._table
        # Taken now: slots are used again.
        waited = now - table.readers.arrival.take(slots)
        self._steps.append((table.class_number.take(slots), waited, progress))
        begun = progress.begun > 0
        if begun.any():
            late = waited[begun] - table.expected_wait.take(slots[begun])
            self._late.append(np.maximum(late, 0.0))

    def add_first_texts(self, slots: NDArray[np.int64], seconds: NDArray[np.float64]) -> None:
        """Streams whose time to first text is known, shape (n,), and this time, shape (n,)."""
        self._texts.append((self._table.class_number.take(slots), seconds))

    def add_given_up(self, slot: int) -> None:
        """A stream is about to be forgotten: its reader looked away in a stall, and no step since.

        Steps report such a stall (`Delivery`), but there will be none for this stream.
        """
        seconds = float(self._table.readers.given_up[slot])
        if seconds:
            counts = bool(noticed(np.array(seconds), self._table.readers.threshold[slot]))
            self._given_up.append((int(self._table.class_number[slot]), seconds, counts))

    def hand_on(self) -> None:
        """Report what has come together since the last call."""
        steps, self._steps = self._steps, []
        self.add_first_texts(*new_first_texts(self._table))
        texts, self._texts = self._texts, []
        got = _joined([step.counts for _, _, step in steps])
        some = got > 0
        tokens = got[some].astype(np.int64)
        everyone = _joined([number for number, _, _ in steps]).astype(np.int64)
        # A stall that its reader gave up comes without a token.
        sums = {
            "output_tokens_total": _joined([step.new for _, _, step in steps]),
            "effective_tokens_total": _joined([_newly_effective(s) for _, _, s in steps]),
            "reasoning_tokens_total": _joined([step.reasoned for _, _, step in steps]),
        }
        for counter, values in sums.items():
            self._count(counter, everyone, values)
        self._count_stalls(everyone, steps)
        number = everyone[some]
        gaps = _joined([step.gaps for _, _, step in steps])[some]
        first = np.isnan(gaps)
        together = tokens > 1
        self._observe(
            "tbt_seconds",
            np.concatenate([number[~first], number[together]]),
            np.concatenate([gaps[~first], np.zeros(np.count_nonzero(together))]),
            np.concatenate([np.ones(np.count_nonzero(~first)), tokens[together] - 1]),
        )
        self._observe(
            "ttfvt_seconds",
            _joined([number for number, _ in texts]).astype(np.int64),
            np.maximum(_joined([seconds for _, seconds in texts]), 0.0),
        )
        waited = np.maximum(_joined([waited for _, waited, _ in steps]), 0.0)
        begun = _joined([step.begun for _, _, step in steps]) > 0
        self._observe("ttft_seconds", everyone[begun], waited[begun])
        late, self._late = self._late, []
        if late:
            self._recorder.observe("first_token_lateness_seconds", np.concatenate(late))

    def _count_stalls(
        self,
        number: NDArray[np.int64],
        steps: list[tuple[NDArray[np.int64], NDArray[np.float64], Progress]],
    ) -> None:
        given_up, self._given_up = self._given_up, []
        number = np.append(number, np.array([each[0] for each in given_up], dtype=np.int64))
        seconds = [np.array([each[1] for each in given_up])]
        counted = [np.array([each[2] for each in given_up])]
        self._count(
            "stall_seconds_total",
            number,
            _joined([step.delivery.stalled for _, _, step in steps] + seconds),
        )
        self._count(
            "stalls_total",
            number,
            _joined([step.delivery.was_stall for _, _, step in steps] + counted),
        )

    def _count(self, counter: str, number: NDArray[np.int64], values: NDArray[Any]) -> None:
        names = self._table.class_names
        sums = np.bincount(number, weights=values, minlength=len(names))
        for qos_class, value in zip(names, sums.tolist(), strict=True):
            if qos_class in self._table.unread and counter in OF_READERS:
                continue  # no reader follows: nothing to be early or late for
            if qos_class == NOT_STREAMED.name and counter != "output_tokens_total":
                continue  # all of it is sent at once
            # Zeros, too: a series that is not there cannot be reckoned with.
            self._recorder.count(counter, value, qos_class=qos_class)

    def _observe(self, histogram: str, number: NDArray[np.int64], *values: NDArray[Any]) -> None:
        for each in np.unique(number).tolist():
            mine = number == each
            name = self._table.class_names[each]
            if name == NOT_STREAMED.name:
                continue  # its tokens are sent at the end
            self._recorder.observe(histogram, *(column[mine] for column in values), qos_class=name)


def _newly_effective(step: Progress) -> NDArray[np.float64]:
    """Effective tokens among those that were not delivered before."""
    share: NDArray[np.float64] = step.new / np.maximum(step.counts, 1)
    return step.delivery.effective * share


def _joined(columns: list[NDArray[Any]]) -> NDArray[np.float64]:
    """All steps' values one after the other."""
    return np.concatenate([np.zeros(0), *columns])
