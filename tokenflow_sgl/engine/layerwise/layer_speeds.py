"""How fast layers compute and the link copies, learned from decode steps."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from tokenflow_sgl.engine.layerwise.layer_copies import LayerCopies, Moment, Ticket
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds

WEIGHT = 0.2
"""Of a step against what was learned before."""
UNDER_WAY = 8
"""Steps that are kept until they are over, at most: SGLang submits steps ahead of the device."""


@dataclass(slots=True)
class StepMoments:
    """What of a step is measured.

    Attributes:
        begin, end: Of what it computes.
        waits: Before and after each wait for a copy.
        fetches: Copies to the device, each with its pages.
    """

    begin: Moment
    end: Moment = None
    waits: list[tuple[Moment, Moment]] = field(default_factory=list)
    fetches: list[tuple[Ticket, int]] = field(default_factory=list)


class LayerSpeeds:
    """Learns on one rank how long a layer computes and a page is copied.

    Args:
        layers: Of the model.
        copies: Tells how long things took.
    """

    def __init__(self, layers: int, copies: LayerCopies) -> None:
        self._layers, self._copies = layers, copies
        self._steps: deque[StepMoments] = deque(maxlen=UNDER_WAY)
        self._layer: float | None = None
        self._pages: float | None = None

    @property
    def known(self) -> StepSpeeds | None:
        """What was learned; None: not both yet."""
        if self._layer is None or self._pages is None:
            return None
        return StepSpeeds(self._layer, self._pages)

    def add(self, step: StepMoments) -> None:
        """A decode step was submitted."""
        self._steps.append(step)

    def learn(self) -> None:
        """From the steps that are over."""
        while self._steps and self._learned(self._steps[0]):
            self._steps.popleft()

    def _learned(self, step: StepMoments) -> bool:
        """Learn from a step; false: it is not over."""
        whole = self._copies.seconds(step.begin, step.end)
        waited = [self._copies.seconds(*wait) for wait in step.waits]
        if whole is None or None in waited:
            return False
        computed = whole - sum(each for each in waited if each is not None)
        self._layer = _moved(self._layer, computed / self._layers)
        took = [self._copies.seconds(ticket.begin, ticket.end) for ticket, _ in step.fetches]
        if took and None not in took:
            pages = sum(pages for _, pages in step.fetches)
            copying = sum(each for each in took if each is not None)
            if copying > 0.0:
                self._pages = _moved(self._pages, pages / copying)
        return True


def _moved(before: float | None, now: float) -> float:
    return max(now if before is None else before + WEIGHT * (now - before), 0.0)
