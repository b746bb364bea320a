"""How long newcomers had to wait, beside what the forecast had said: what a refused client is told.

The forecast asks until when what is promised lasts, with careful lengths. As a rule the way is free
long before. Who is refused goes by the forecast: with what is likely in its place more would be
let in who then wait too long. When to come again goes by what is likely.
"""

from __future__ import annotations

import dataclasses
from collections import deque

import numpy as np

from tokenflow_sgl.contract import Streams
from tokenflow_sgl.policy.outlook import LONGEST, WaitOutlook

SHORTEST = 0.5
"""Seconds below which a forecast is not asked how true it was."""
KEPT = 32
"""Times that the way was free again of which it is known how true the forecast had been."""
FEW = 2
"""So many are too few to go by."""
SURE = 0.9
"""Share of the looks before each, and of these times, in which it was free by what is told."""


class WaitCalibration:
    """Compares forecasts with what came, as seen at looks at one engine, one after the other.

    A newcomer at an earlier look would have its first token by now if one has that came after it
    and did not overtake it, or if now a newcomer would hardly wait.
    """

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float]] = deque()  # moment and forecast, not yet compared
        self._lasted: deque[float] = deque(maxlen=KEPT)

    def seen(self, found: WaitOutlook, streams: Streams) -> WaitOutlook:
        """The forecast, with the share of such forecasts that waits have lasted.

        Args:
            found: A forecast, later than the ones before.
            streams: Of the state that it was found from.
        """
        forecast = found.expected(found.at)
        free = found.at if forecast < SHORTEST else self._served(found, streams)
        waited = []
        while self._looks and (self._looks[0][0] < free or found.at - self._looks[0][0] > LONGEST):
            at, wait = self._looks.popleft()
            waited.append((found.at - at) / wait)
        if waited:
            self._lasted.append(float(np.quantile(waited, SURE)))
        if forecast >= SHORTEST:
            self._looks.append((found.at, forecast))
        return dataclasses.replace(found, lasted=self._share)

    @property
    def _share(self) -> float:
        if len(self._lasted) <= FEW:
            return 1.0
        return min(float(np.quantile(self._lasted, SURE)), 1.0)

    @staticmethod
    def _served(found: WaitOutlook, streams: Streams) -> float:
        """When the last one came that has a token: shorter prompts than usual overtake others."""
        usual = float(np.median(found.prompt))
        begun = streams.arrival[(streams.generated > 0) & (streams.uncached >= usual)]
        return float(begun.max(initial=-np.inf))
