"""Tokens of the steps, and when SGLang has them.

While a step runs, SGLang plans the next one without the result of the one that runs. What it
decides by is what the steps before gave: their tokens, and what their readers have of them.
"""

from __future__ import annotations

from tokenflow_sgl.lab.sim.simulated_streams import FloatArray, IntArray, SimulatedStreams


class StepResults:
    """Results of one engine that SGLang does not have yet.

    Args:
        streams: Of the run.
    """

    def __init__(self, streams: SimulatedStreams) -> None:
        self._streams = streams
        self._coming: list[tuple[IntArray, FloatArray]] = []

    def add(self, rows: IntArray, times: FloatArray) -> None:
        """Each of `rows` gets a token at each of `times`, which do not decrease."""
        self._streams.generated[rows] += len(times)
        self._coming.append((rows, times))

    def arrive(self, now: float) -> None:
        """SGLang has what was computed by `now`, and has sent it to the readers."""
        coming, self._coming = self._coming, []
        for rows, times in coming:
            if times.item(-1) <= now:
                self._streams.deliver(rows, times)
                continue
            here = int(times.searchsorted(now, side="right"))
            if here:
                self._streams.deliver(rows, times[:here])
            self._coming.append((rows, times[here:]))
