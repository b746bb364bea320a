"""Streams that have their last token, and when SGLang knows of it.

While a step runs, SGLang plans the next one without the result of the one that runs. So for that
plan the streams that end in it still run: their memory is taken, their answers may go on, and their
rows are computed once more. Only where an answer ends at its limit SGLang knows beforehand, and
leaves its row out.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tokenflow_sgl.lab.sim.simulated_streams import IntArray, SimulatedStreams

_NO_STREAM: IntArray = np.zeros(0, dtype=np.int64)


class EndedStreams:
    """Streams of one engine that have ended, until SGLang has freed what they held.

    Args:
        streams: Of the run.

    Attributes:
        unknown: Those that ended in the step under way: SGLang plans as if they went on.
        again: Of these the ones whose rows are in the next step.
    """

    def __init__(self, streams: SimulatedStreams) -> None:
        self._streams = streams
        self._fresh: list[int] = []
        self.unknown = self.again = _NO_STREAM

    def add(self, streams: Iterable[int]) -> None:
        """Add streams that got their last token in the step that was executed last."""
        self._fresh += streams

    def turn(self, *, at_once: bool) -> list[int]:
        """The next plan begins; returns the streams of whose end SGLang knows by now.

        at_once: It knows of all, because nothing runs or each result is awaited.
        """
        known: list[int] = self.unknown.tolist()
        if at_once:
            known += self._fresh
            self._fresh = []
        if not known and not self._fresh:
            return known
        self.unknown = np.array(self._fresh, dtype=np.int64)
        goes_on = self._streams.answer[self.unknown] < self._streams.limit[self.unknown]
        self.again = self.unknown[goes_on]
        self._fresh = []
        return known

    def drop(self, slots: Iterable[int]) -> None:
        """The rows of those among `slots` are taken out of the batch: they are not computed."""
        self.again = self.again[~np.isin(self.again, list(slots))]

    @property
    def at_limit(self) -> bool:
        """Whether some end in the step under way that are known to: their memory is soon free."""
        return len(self.unknown) > len(self.again)

    def __bool__(self) -> bool:
        return bool(self._fresh) or bool(len(self.unknown))
