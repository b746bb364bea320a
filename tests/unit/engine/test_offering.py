"""What SGLang's admission sees of the queue, and what SGLang does with the rest meanwhile."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.scheduler import Scheduler
from tokenflow_sgl.engine.offering import OfferingScheduler


class Request:
    """The lower its number, the less urgent it is."""

    def __init__(self, priority: int) -> None:
        self.priority, self.rid = priority, str(priority)
        self.time_stats = SimpleNamespace(
            wait_queue_entry_time=float(priority),
            trace_ctx=SimpleNamespace(abort=lambda abort_info: None),
        )


@pytest.fixture
def scheduler(monkeypatch) -> Any:
    """SGLang's, with a queue of three at most, which is full."""
    made = object.__new__(OfferingScheduler)
    made.max_queued_requests, made.enable_priority_scheduling = 3, True
    made.schedule_low_priority_values_first = False
    made.beam_coordinator = SimpleNamespace(retire_group=lambda req: None)
    made.waiting_queue = [Request(2), Request(1), Request(3)]
    made.turned_away = []
    monkeypatch.setattr(Scheduler, "_release_aborted_request", lambda self, req: None)
    monkeypatch.setattr(
        Scheduler, "send_abort_output", lambda self, _abort, req: self.turned_away.append(req)
    )
    monkeypatch.setattr("sglang.srt.managers.scheduler._make_abort_req", lambda req, **_: req)
    return made


def test_who_is_turned_away_for_another_is_not_admitted(scheduler) -> None:
    """It would run to its end, though its client has been told that the queue is full."""
    some, least, last = scheduler.waiting_queue
    urgent, paused = Request(4), Request(0)
    with scheduler._tf_offering(offered := [paused, least, some]):
        with scheduler._tf_whole_queue() as queue:  # as where its grammar is ready
            assert not scheduler._abort_on_queued_limit(urgent)
            queue.append(urgent)
        assert scheduler.turned_away == [least]
        assert scheduler.waiting_queue == [paused, some]
        assert scheduler.waiting_queue is offered
    assert scheduler.waiting_queue == [some, last, urgent]


def test_who_comes_in_vain_changes_nothing(scheduler) -> None:
    some, least, last = scheduler.waiting_queue
    newcomer = Request(0)
    with scheduler._tf_offering([least, some]):
        with scheduler._tf_whole_queue():
            assert scheduler._abort_on_queued_limit(newcomer)
        assert scheduler.waiting_queue == [least, some]
        scheduler.waiting_queue = [least]  # SGLang has admitted the other one
    assert scheduler.waiting_queue == [least, last]
