"""Copies that land as late as they may, and a platform on which they are."""

from __future__ import annotations

import pytest

from tokenflow_sgl_emulator import late_copies
from tokenflow_sgl_emulator.late_copies import Event, Stream, StreamContext, copy, current_stream

LATE = 3


@pytest.fixture(autouse=True)
def lateness(monkeypatch):
    monkeypatch.setenv(late_copies.LATE_VARIABLE, str(LATE))
    late_copies.lateness.cache_clear()
    yield
    late_copies.lateness.cache_clear()


@pytest.fixture
def copied():
    """A copy between two events on a stream of its own: what is done so far, and the events."""
    done: list[str] = []
    stream, start, end = Stream(), Event(), Event()
    with StreamContext(stream):
        start.record()
        copy(lambda: done.append("copy"))
        end.record()
    return stream, done, start, end


def test_a_copy_is_done_when_it_was_asked_for_often_enough(copied) -> None:
    _, done, start, end = copied
    assert start.query(), "nothing came before it"
    assert [end.query() for _ in range(LATE)] == [False] * LATE
    assert done == []
    assert end.query()
    assert done == ["copy"]
    assert start.elapsed_time(end) >= 0


@pytest.mark.parametrize(
    "wait",
    [
        lambda stream, end: end.synchronize(),
        lambda stream, end: end.wait(),
        lambda stream, end: stream.synchronize(),
        lambda stream, end: current_stream().wait_stream(stream),
        lambda stream, end: current_stream().wait_event(end),
        lambda stream, end: stream.record_event().synchronize(),
    ],
)
def test_a_copy_is_done_when_it_is_waited_for(copied, wait) -> None:
    stream, done, _, end = copied
    assert not stream.query()
    wait(stream, end)
    assert done == ["copy"]
    assert stream.query()
    assert end.query()


def test_copies_of_a_stream_are_done_in_their_order_and_others_are_not(copied) -> None:
    stream, done, _, first = copied
    with StreamContext(stream):
        copy(lambda: done.append("second"))
    other = Stream()
    with StreamContext(other):
        copy(lambda: done.append("other"))
    first.synchronize()
    assert done == ["copy"]
    stream.synchronize()
    assert done == ["copy", "second"]
    other.synchronize()
    assert done == ["copy", "second", "other"]


def test_an_event_can_be_recorded_again(copied) -> None:
    stream, done, _, end = copied
    end.synchronize()
    with StreamContext(stream):
        copy(lambda: done.append("again"))
        end.record()
    assert not end.query()
    end.synchronize()
    assert done == ["copy", "again"]


def test_without_the_variable_copies_are_done_at_once(monkeypatch, copied) -> None:
    monkeypatch.delenv(late_copies.LATE_VARIABLE)
    late_copies.lateness.cache_clear()
    done: list[str] = []
    copy(lambda: done.append("copy"))
    assert done == ["copy"]


@pytest.mark.parametrize("text", ["-1", "1.5", "soon", ""])
def test_a_bad_number_is_named(monkeypatch, text) -> None:
    monkeypatch.setenv(late_copies.LATE_VARIABLE, text)
    late_copies.lateness.cache_clear()
    with pytest.raises(ValueError, match=f"{late_copies.LATE_VARIABLE} is '{text}'; allowed is"):
        late_copies.lateness()
