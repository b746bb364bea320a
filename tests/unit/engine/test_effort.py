"""What the package counts as its own time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.engine import core_of
from fakes.sglang import Batch, Scheduler

from tokenflow_sgl.engine.telemetry import sampling


@pytest.fixture
def clock(monkeypatch):
    """Every look at it takes a second."""
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(
        sampling, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds)))
    )


class Passes:
    """A core whose every pass takes two seconds of ours: one before SGLang chooses, one behind.

    Attributes:
        plan: What SGLang chooses.
    """

    def __init__(self) -> None:
        self.core = core_of(Scheduler())
        self.plan: Any = SimpleNamespace(batch_to_run=None)

    def __call__(self) -> None:
        nothing = Batch()
        assert self.core.next_batch(nothing, None, lambda *_: self.plan) is self.plan

    @property
    def effort(self) -> float:
        return self.core.meters.effort.take()


@pytest.fixture
def turn(clock) -> Passes:
    return Passes()


def test_an_idle_loop_costs_nothing(turn) -> None:
    for _ in range(100):
        turn()
    assert turn.effort == 0.0


def test_passes_with_work_count(turn) -> None:
    turn()
    turn.plan.batch_to_run = Batch()
    for _ in range(3):
        turn()
    assert turn.effort == 6.0
    assert turn.effort == 0.0
