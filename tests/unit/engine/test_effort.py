"""What the package counts as its own time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.managers.scheduler import Scheduler
from tokenflow_sgl.engine.scheduler import TokenFlowScheduler

from tokenflow_sgl.engine.telemetry import sampling
from tokenflow_sgl.engine.telemetry.sampling import Effort


@pytest.fixture
def clock(monkeypatch):
    """Every look at it takes a second."""
    seconds = iter(range(1_000_000))
    monkeypatch.setattr(
        sampling, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds)))
    )


@pytest.fixture
def scheduler(monkeypatch, clock):
    """A scheduler whose every turn takes two seconds of ours; `plan` is what SGLang answers."""
    made = object.__new__(TokenFlowScheduler)
    made.tf_effort = Effort()
    made.tf_pauser = SimpleNamespace(paused={})
    made.tf_loader = SimpleNamespace(request=None)
    made.tf_timer = SimpleNamespace(launch=lambda work: None)
    made.tf_agreement = None
    made.tf_alone = False
    made.plan = SimpleNamespace(batch_to_run=None)
    monkeypatch.setattr(TokenFlowScheduler, "_tf_begin", lambda self, *_batches: None)
    monkeypatch.setattr(Scheduler, "get_next_batch_to_run", lambda self, _running, _last: self.plan)
    return made


def test_an_idle_loop_costs_nothing(scheduler) -> None:
    for _ in range(100):
        scheduler.get_next_batch_to_run(None, None)
    assert scheduler.tf_effort.take() == 0.0


def test_passes_with_work_count(scheduler) -> None:
    scheduler.get_next_batch_to_run(None, None)
    scheduler.plan.batch_to_run = SimpleNamespace(reqs=[])
    for _ in range(3):
        scheduler.get_next_batch_to_run(None, None)
    assert scheduler.tf_effort.take() == 6.0
    assert scheduler.tf_effort.take() == 0.0
