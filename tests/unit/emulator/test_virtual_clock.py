"""The virtual clock, and requests that wait on it for their arrival."""

from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl_emulator.timed import clock as clock_module
from tokenflow_sgl_emulator.timed import timed_streams
from tokenflow_sgl_emulator.timed.clock import IDLE_PASS_S, VirtualClock
from tokenflow_sgl_emulator.timed.timed_streams import Stream
from tokenflow_sgl_emulator.timed.virtual_arrivals import ARRIVAL_KEY, VirtualArrivals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """A virtual clock, which streams run on, too."""
    made = VirtualClock()
    monkeypatch.setattr(timed_streams, "the_clock", lambda: made)
    monkeypatch.setattr(timed_streams, "now", made.now)
    return made


def request(rid: str, at_s: float | None = None, index: int = 0, of: int = 1, **turns: int) -> Any:
    custom: dict[str, Any] = {"tokenflow_rate": 9.0}
    if at_s is not None:
        custom |= {ARRIVAL_KEY: {"at_s": at_s, "index": index, "of": of, **turns}}
    return SimpleNamespace(rid=rid, sampling_params=SimpleNamespace(custom_params=custom))


def abort(rid: str, everything: bool = False) -> Any:
    return SimpleNamespace(rid=rid, abort_all=everything)


def rids(messages: list[Any]) -> list[str]:
    return [message.rid for message in messages]


def test_waiting_moves_the_clock_and_nothing_else_does(clock: VirtualClock) -> None:
    stream = Stream()
    stream.enqueue(2.0)
    event = stream.record_event()
    stream.enqueue(3.0)
    assert clock.now() == 0.0 and not event.query()
    event.synchronize()
    assert clock.now() == 2.0 and event.query() and not stream.query()
    stream.synchronize()
    event.synchronize()
    assert clock.now() == 5.0


def test_a_device_without_requests_ends_what_it_has_begun(clock: VirtualClock) -> None:
    stream = Stream()
    stream.enqueue(4.0)
    event = stream.record_event()
    clock.settle()
    assert clock.now() == 4.0 and event.query()


def test_a_trace_begins_when_all_of_it_is_there(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    clock.wait_until(10.0)
    late, early = request("late", 1.5, 0, 3), request("early", 0.0, 2, 3)
    assert arrivals.receive([late, early]) == []
    assert not arrivals.jump() and clock.now() == 10.0
    assert rids(arrivals.receive([request("same", 0.0, 1, 3)])) == ["same", "early"]
    assert arrivals.elapsed() == 0.0
    assert arrivals.receive([]) == []
    assert arrivals.jump() and clock.now() == 11.5
    assert rids(arrivals.receive([])) == ["late"]
    assert not arrivals.jump()


def test_other_messages_pass(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    flush, plain = SimpleNamespace(), request("plain")
    assert arrivals.receive([flush, request("held", 0.0, 0, 2), plain]) == [flush, plain]


def test_an_idle_pass_ends_at_the_next_arrival(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    soon = 1.5 * IDLE_PASS_S
    arrivals.receive([request("now", 0.0, 0, 2), request("soon", soon, 1, 2)])
    arrivals.idle_pass()
    assert clock.now() == IDLE_PASS_S
    arrivals.idle_pass()
    assert clock.now() == soon
    assert rids(arrivals.receive([])) == ["soon"]
    for number in range(1, 9):
        arrivals.idle_pass()
        assert clock.now() == pytest.approx(soon + number * IDLE_PASS_S)


def test_what_is_aborted_reaches_sglang_before_its_abort(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    arrivals.receive([request("a", 5.0, 0, 2), request("b", 0.0, 1, 2)])
    ended = arrivals.receive([abort("a")])
    assert rids(ended) == ["a", "a"] and hasattr(ended[1], "abort_all")
    assert not arrivals.jump()


def test_a_second_trace_begins_anew(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    arrivals.receive([request("first", 0.0)])
    clock.wait_until(7.0)
    assert not arrivals.next_trace()
    assert rids(arrivals.receive([request("second", 0.0)])) == ["second"]
    assert arrivals.elapsed() == 0.0


def test_a_second_trace_waits_until_the_first_is_done(clock: VirtualClock) -> None:
    """Its requests must not come among those of the first, nor its beginning be theirs."""
    arrivals = VirtualArrivals(clock)
    first = [request("a", 0.0, 0, 3), request("b", 1.0, 1, 3), request("c", 2.0, 2, 3)]
    assert rids(arrivals.receive(first)) == ["a"]
    assert arrivals.receive([request("x", 100.0, 0, 2), request("y", 0.0, 1, 2)]) == []
    for moment, due in ((1.0, "b"), (2.0, "c")):
        assert arrivals.jump() and clock.now() == moment
        assert rids(arrivals.receive([])) == [due]
    clock.wait_until(3.0)
    assert arrivals.receive([]) == [] and arrivals.elapsed() == 3.0, "answers are under way"
    assert not arrivals.jump() and arrivals.next_trace()
    assert rids(arrivals.receive([])) == ["y"] and arrivals.elapsed() == 0.0
    assert arrivals.jump() and clock.now() == 103.0


def test_traces_that_come_together_are_told_apart_by_their_size(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    assert arrivals.receive([request("a", 0.0, 0, 3), request("b", 0.0, 1, 3)]) == []
    assert rids(arrivals.receive([request("x", 0.0, 0, 1)])) == ["x"]
    assert arrivals.receive([request("c", 0.0, 2, 3), request("next", 5.0, 0, 3)]) == []
    assert arrivals.next_trace()
    assert rids(arrivals.receive([])) == ["a", "b", "c"]
    assert not arrivals.jump()


def test_what_waits_for_its_trace_can_be_aborted(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    arrivals.receive([request("a", 0.0)])
    arrivals.receive([request("b", 0.0, 0, 2), request("c", 0.0, 1, 2)])
    assert rids(arrivals.receive([abort("", everything=True)])) == ["b", "c", ""]
    assert not arrivals.next_trace()


def test_each_request_of_a_batch_arrives_at_its_moment(clock: VirtualClock) -> None:
    arrivals = VirtualArrivals(clock)
    trace = SimpleNamespace(batch=[request("a", 0.0, 0, 2), request("b", 4.0, 1, 2)])
    plain = SimpleNamespace(batch=[request("c"), request("d")])
    passed = arrivals.receive([trace, plain])
    assert passed == [plain, trace.batch[0]], "SGLang takes a batch that says nothing as it is"
    assert arrivals.jump() and clock.now() == 4.0
    assert arrivals.receive([]) == [trace.batch[1]]


def served(rid: str, said: str | None = None) -> Any:
    """SGLang's request, which has ended if it `said` why."""
    reason = None if said is None else SimpleNamespace(to_json=lambda: {"type": said})
    return SimpleNamespace(rid=rid, finished=lambda: reason is not None, finished_reason=reason)


@pytest.fixture
def conversation(clock: VirtualClock) -> VirtualArrivals:
    """One of three turns of which the first is under way, beside a request that comes at 9 s."""
    arrivals = VirtualArrivals(clock)
    first = request("first", 0.0, 0, 4, later_turns=2)
    assert rids(arrivals.receive([first, request("other", 9.0, 1, 4)])) == ["first"]
    return arrivals


def test_the_clock_stands_until_the_next_turn_is_there(
    clock: VirtualClock, conversation: VirtualArrivals
) -> None:
    conversation.note_answers([served("first")])
    assert conversation.receive([]) == [] and not conversation.awaits_turns, "it goes on"
    conversation.note_answers([served("first", "stop")])
    assert conversation.receive([]) == [] and conversation.awaits_turns
    second = request("second", 4.0, 2, 4, later_turns=1, after=0)
    assert conversation.receive([second]) == [] and not conversation.awaits_turns
    assert conversation.jump() and clock.now() == 4.0
    assert rids(conversation.receive([])) == ["second"]
    conversation.note_answers([served("second", "length")])
    assert rids(conversation.receive([request("third", 4.0, 3, 4, after=2)])) == ["third"]
    assert conversation.jump() and clock.now() == 9.0, "and the other comes at its moment"


def test_behind_an_answer_that_was_aborted_no_turn_is_awaited(
    conversation: VirtualArrivals,
) -> None:
    conversation.note_answers([served("first", "abort")])
    conversation.receive([])
    assert not conversation.awaits_turns


@pytest.mark.parametrize("everything", [True, False])
def test_a_turn_that_will_not_come_is_given_up(
    conversation: VirtualArrivals, caplog: pytest.LogCaptureFixture, everything: bool
) -> None:
    conversation.note_answers([served("first", "stop")])
    conversation.receive([abort("", everything=everything)])
    assert conversation.awaits_turns is not everything
    if not everything:
        conversation.give_up_turns()
        assert "1 turns of conversations were announced and did not come" in caplog.text
    assert not conversation.awaits_turns


def test_the_environment_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(clock_module.VIRTUAL_VARIABLE, raising=False)
    assert not clock_module.virtual_time()
    monkeypatch.setenv(clock_module.VIRTUAL_VARIABLE, "1")
    assert clock_module.virtual_time()
    monkeypatch.setenv(clock_module.VIRTUAL_VARIABLE, "yes")
    with pytest.raises(ValueError, match="is 'yes'; allowed is 0 or 1"):
        clock_module.virtual_time()
