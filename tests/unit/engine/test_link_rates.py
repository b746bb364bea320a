"""What is learned from HiCache's copies as they land."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.kv.link_rates import TransferWatch
from tokenflow_sgl.engine.shared_clock import ClockTick, SharedClock
from tokenflow_sgl.engine.telemetry.prometheus import Recorder


class Event:
    def __init__(self, at: float) -> None:
        self.at, self.happened = at, False

    def query(self) -> bool:
        return self.happened

    def elapsed_time(self, other: Event) -> float:
        return 1e3 * (other.at - self.at)


class Told(Recorder):
    def __init__(self) -> None:
        self.links: list[tuple[str, float, int]] = []

    def link(self, direction: str, rate: float, queued: int) -> None:
        self.links.append((direction, pytest.approx(rate), queued))


def copy(tokens: int, seconds: float, timed: bool = True) -> SimpleNamespace:
    return SimpleNamespace(
        start_event=Event(1.0),
        finish_event=Event(1.0 + seconds),
        num_tokens=tokens,
        timing_enabled=timed,
    )


@pytest.fixture
def watched():
    controller = SimpleNamespace(ack_write_queue=[], ack_load_queue=[], write_queue=[])
    told = Told()
    return controller, TransferWatch(controller, told), told


def test_a_copy_counts_once_and_only_when_it_has_landed(watched) -> None:
    controller, watch, told = watched
    first = copy(100, 0.5)
    controller.ack_write_queue.append(first)
    assert all(math.isnan(rate) for rate in watch.look())
    first.finish_event.happened = True
    for _ in range(3):
        store, load = watch.look()
    assert store == pytest.approx(200.0)
    assert math.isnan(load)
    assert told.links == [("store", 200.0, 0)]
    second = copy(60, 0.3)
    controller.ack_write_queue[:] = [second]
    watch.look()
    assert told.links[-1] == ("store", 200.0, 60)


def test_both_ways_are_told_apart(watched) -> None:
    controller, watch, told = watched
    for queue, tokens in ((controller.ack_write_queue, 100), (controller.ack_load_queue, 400)):
        queue.append(copy(tokens, 1.0))
        queue[0].finish_event.happened = True
    assert watch.look() == (pytest.approx(100.0), pytest.approx(400.0))
    assert {name for name, *_ in told.links} == {"store", "load"}


def test_copies_without_a_time_teach_nothing(watched) -> None:
    controller, watch, told = watched
    untimed = copy(100, 0.5, timed=False)
    untimed.finish_event.happened = True
    controller.ack_load_queue.append(untimed)
    assert math.isnan(watch.look()[1])
    assert told.links == []


def test_ranks_take_the_leaders_rates_and_their_own_queue(watched) -> None:
    controller, watch, _ = watched
    controller.ack_write_queue.append(copy(100, 0.5))
    controller.write_queue.append(SimpleNamespace(device_indices=range(28)))
    clock = SharedClock()
    clock.receive(ClockTick(3.0, 1000, 5e4, 6e4))
    links = watch.links(clock)
    assert (links.store.rate, links.store.queued) == (5e4, 128)
    assert links.load.rate == 6e4


def test_without_hicache_nothing_is_known() -> None:
    watch = TransferWatch(None, Recorder())
    assert all(math.isnan(rate) for rate in watch.look())
    assert math.isnan(watch.links(SharedClock()).store.rate)


def test_what_lands_after_the_last_stream_is_told(watched) -> None:
    """The clock stands then, and nobody asks for rates any more."""
    controller, watch, told = watched
    known, last = copy(100, 0.5), copy(11, 0.1)
    known.finish_event.happened = True
    controller.ack_write_queue[:] = [known, last]
    watch.look()
    assert told.links == [("store", 200.0, 11)]
    watch.settle()
    last.finish_event.happened = True
    watch.settle()
    assert [queued for *_, queued in told.links] == [11, 0]
    controller.ack_write_queue.append(copy(5, 0.1))  # of none that was served
    watch.settle()
    assert [queued for *_, queued in told.links] == [11, 0]
