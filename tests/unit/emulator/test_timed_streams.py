"""Streams and events that carry time, on a clock that only moves when somebody sleeps."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tokenflow_sgl_emulator.timed import clock as clock_module
from tokenflow_sgl_emulator.timed import timed_streams
from tokenflow_sgl_emulator.timed.timed_streams import Event, Stream, StreamContext, current_stream


class Clock:
    """Wall clock of a test: `now` is constant but for sleeping, and for a tick per spin."""

    def __init__(self) -> None:
        self.time = 100.0
        self.slept = 0.0

    def now(self) -> float:
        self.time += 1e-6
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds
        self.slept += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    fake = Clock()
    monkeypatch.setattr(timed_streams, "now", fake.now)
    fakes = SimpleNamespace(perf_counter=fake.now, sleep=fake.sleep)
    monkeypatch.setattr(clock_module, "time", fakes)
    yield fake


def near(value: float) -> object:
    return pytest.approx(value, abs=1e-3)


def test_work_queues_behind_work(clock: Clock) -> None:
    stream = Stream()
    stream.enqueue(2.0)
    stream.enqueue(3.0)
    assert stream.done_at == near(105.0)
    assert not stream.query()
    stream.synchronize()
    assert clock.time == near(105.0) and stream.query()


def test_work_cannot_start_before_it_is_submitted(clock: Clock) -> None:
    stream = Stream()
    stream.enqueue(1.0)
    clock.time = 110.0
    stream.enqueue(1.0)
    assert stream.done_at == near(111.0)


def test_an_event_is_the_work_before_it_only(clock: Clock) -> None:
    stream = Stream()
    stream.enqueue(1.0)
    event = stream.record_event()
    stream.enqueue(5.0)
    event.synchronize()
    assert clock.time == near(101.0)
    assert event.query() and not stream.query()


def test_waiting_passes_time_on_without_sleeping(clock: Clock) -> None:
    copies, compute = Stream(), Stream()
    copies.enqueue(4.0)
    compute.wait_event(copies.record_event())
    compute.enqueue(1.0)
    assert compute.done_at == near(105.0)
    other = Stream()
    other.wait_stream(compute)
    other.enqueue(1.0)
    assert other.done_at == near(106.0)
    assert clock.slept == 0.0


def test_streams_run_side_by_side(clock: Clock) -> None:
    first, second = Stream(), Stream()
    first.enqueue(4.0)
    second.enqueue(1.0)
    assert second.done_at == near(101.0)


def test_an_event_that_was_never_recorded_is_done(clock: Clock) -> None:
    event = Event()
    assert event.query()
    event.synchronize()
    assert clock.slept == 0.0


def test_elapsed_time_is_in_milliseconds(clock: Clock) -> None:
    stream = Stream()
    start = stream.record_event()
    stream.enqueue(0.25)
    assert start.elapsed_time(stream.record_event()) == pytest.approx(250.0, abs=0.1)


def test_contexts_nest_and_end(clock: Clock) -> None:
    outer, inner = Stream(), Stream()
    default = current_stream()
    with StreamContext(outer):
        with StreamContext(inner), StreamContext(None):
            assert current_stream() is inner
        assert current_stream() is outer
        Event().record()
    assert current_stream() is default


def test_one_context_may_be_entered_again(clock: Clock) -> None:
    # SGLang keeps one context per stream and enters it for every step.
    stream = Stream()
    context = StreamContext(stream)
    for _ in range(2):
        with context, context:
            assert current_stream() is stream
        assert current_stream() is not stream
