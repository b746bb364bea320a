"""What SGLang's admission sees of the queue, and what SGLang does with the rest meanwhile."""

from __future__ import annotations

import pytest
from fakes.engine import BareScheduler, channels_to
from fakes.sglang import Request
from sglang.srt.managers.scheduler import Scheduler

from tokenflow_sgl.engine.admission import OfferedQueue


def request(priority: int) -> Request:
    """The lower its number, the less urgent it is."""
    made = Request(str(priority), priority=priority)
    made.time_stats.wait_queue_entry_time = float(priority)
    return made


@pytest.fixture
def scheduler(monkeypatch) -> BareScheduler:
    """SGLang's own code, with a queue of three at most, which is full."""
    monkeypatch.setattr(Scheduler, "_release_aborted_request", lambda self, req: None)
    monkeypatch.setattr("sglang.srt.managers.scheduler._make_abort_req", lambda req, **_: req)
    turned_away: list[Request] = []
    return BareScheduler(
        ipc_channels=channels_to(turned_away.append),
        rust_server=None,
        max_queued_requests=3,
        enable_priority_scheduling=True,
        schedule_low_priority_values_first=False,
        waiting_queue=[request(2), request(1), request(3)],
        turned_away=turned_away,
    )


def test_who_is_turned_away_for_another_is_not_admitted(scheduler) -> None:
    """It would run to its end, though its client has been told that the queue is full."""
    some, least, last = scheduler.waiting_queue
    urgent, paused = request(4), request(0)
    offered = OfferedQueue(scheduler)
    with offered.only(shown := [paused, least, some]):
        with offered.whole() as queue:  # as where its grammar is ready
            assert not scheduler._abort_on_queued_limit(urgent)
            queue.append(urgent)
        assert scheduler.turned_away == [least]
        assert scheduler.waiting_queue == [paused, some]
        assert scheduler.waiting_queue is shown
        assert offered.waiting() == [some, last, urgent]
    assert scheduler.waiting_queue == [some, last, urgent]


def test_who_comes_in_vain_changes_nothing(scheduler) -> None:
    some, least, last = scheduler.waiting_queue
    newcomer = request(0)
    offered = OfferedQueue(scheduler)
    with offered.only([least, some]):
        with offered.whole():
            assert scheduler._abort_on_queued_limit(newcomer)
        assert scheduler.waiting_queue == [least, some]
        scheduler.waiting_queue = [least]  # SGLang has admitted the other one
    assert scheduler.waiting_queue == [least, last]


def test_outside_of_admission_the_queue_is_whole(scheduler) -> None:
    offered, queue = OfferedQueue(scheduler), scheduler.waiting_queue
    assert offered.waiting() is queue
    with offered.whole() as whole:
        assert whole is queue


def test_the_queue_is_whole_again_when_admission_fails(scheduler) -> None:
    offered, queue = OfferedQueue(scheduler), list(scheduler.waiting_queue)
    with pytest.raises(ZeroDivisionError), offered.only(queue[:1]):
        raise ZeroDivisionError
    assert scheduler.waiting_queue == queue
    assert offered.waiting() == queue
