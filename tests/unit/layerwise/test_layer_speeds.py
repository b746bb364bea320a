"""Speeds are learned from steps that are over."""

from __future__ import annotations

import pytest

from tokenflow_sgl.engine.layerwise.layer_copies import Ticket
from tokenflow_sgl.engine.layerwise.layer_speeds import LayerSpeeds, StepMoments
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds


class Clock:
    """Moments are seconds; those after `now` have not come."""

    now = 100.0

    def seconds(self, begin: float, end: float) -> float | None:
        return end - begin if end <= self.now else None


def step(seconds: float, *, waited: float = 0.0, pages: int = 0, copying: float = 0.0):
    waits = [(1.0, 1.0 + waited)] if waited else []
    fetches = [(Ticket(2.0, 2.0 + copying), pages)] if pages else []
    return StepMoments(0.0, seconds, waits, fetches)


def learned(*steps: StepMoments) -> LayerSpeeds:
    speeds = LayerSpeeds(4, Clock())
    for each in steps:
        speeds.add(each)
    speeds.learn()
    return speeds


def test_layers_are_known_without_their_stalls_and_the_link_by_its_copies() -> None:
    assert learned(step(8.0)).known is None, "nothing was copied"
    speeds = learned(step(8.0), step(11.0, waited=3.0, pages=30, copying=2.0))
    assert speeds.known == StepSpeeds(2.0, 15.0)


def test_later_steps_move_it() -> None:
    speeds = learned(step(8.0, pages=10, copying=1.0), step(16.0, pages=20, copying=1.0))
    assert speeds.known.layer == pytest.approx(2.0 + 0.2 * 2.0)
    assert speeds.known.pages == pytest.approx(10.0 + 0.2 * 10.0)


def test_steps_that_are_not_over_teach_later() -> None:
    clock = Clock()
    speeds = LayerSpeeds(4, clock)
    for each in (step(200.0, pages=10, copying=1.0), step(208.0, pages=10, copying=1.0)):
        speeds.add(each)
    speeds.learn()
    assert speeds.known is None
    clock.now = 205.0
    speeds.learn()
    assert speeds.known == StepSpeeds(50.0, 10.0)
    clock.now = 210.0
    speeds.learn()
    assert speeds.known.layer == pytest.approx(50.0 + 0.2 * 2.0)


def test_steps_that_never_end_are_dropped() -> None:
    speeds = learned(*(step(200.0) for _ in range(50)), step(8.0, pages=10, copying=1.0))
    assert speeds.known is None
    for _ in range(7):
        speeds.add(step(8.0, pages=10, copying=1.0))
    speeds.learn()
    assert speeds.known == StepSpeeds(2.0, 10.0)
