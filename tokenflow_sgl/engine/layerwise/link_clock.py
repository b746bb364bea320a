"""How many pages may go ahead of their layers without keeping an earlier layer's pages waiting.

A stream of copies does them in their order, whatever becomes more urgent meanwhile. So at each
layer only as much is asked for as the link moves until the layer is done; then the most urgent
comes first again, as in `placement.step_latency`, but for part of a page.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class StepSpeeds:
    """What a decode step is expected to do.

    Attributes:
        layer: Seconds that a layer computes, >= 0.0.
        pages: Pages of one layer that the link moves per second, > 0.0.
    """

    layer: float
    pages: float


class LinkClock:
    """Follows one decode step: when its layers compute, and when the link brings their pages.

    Args:
        speeds: What it does; None: not known, and all may go ahead.
    """

    def __init__(self, speeds: StepSpeeds | None) -> None:
        self._speeds = speeds
        self._now = 0.0
        self._moved = 0.0  # until when the link is busy with what was asked for
        self._landing: dict[int, float] = {}

    def asked(self, layer: int, pages: int) -> None:
        """Pages for a layer were asked for."""
        if self._speeds is None:
            return
        self._moved = max(self._moved, self._now) + pages / self._speeds.pages
        self._landing[layer] = self._moved

    def starts(self, layer: int) -> None:
        """A layer starts: its pages are there."""
        self._now = max(self._now, self._landing.pop(layer, 0.0))

    def ends(self) -> None:
        """Note that the layer has computed."""
        if self._speeds is not None:
            self._now += self._speeds.layer

    def most(self) -> int | None:
        """Pages that may be asked for now, while the layer computes; None: any number."""
        if self._speeds is None:
            return None
        left = self._now + self._speeds.layer - max(self._moved, self._now)
        return max(math.ceil(left * self._speeds.pages - _ROUNDING), 0)
