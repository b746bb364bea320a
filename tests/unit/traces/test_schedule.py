from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.choices import Sessions
from tokenflow_sgl.lab.traces.request import TraceRequest
from tokenflow_sgl.lab.traces.schedule import ClosedLoop, Schedule


def turn(arrival_s, session, number, think_s=0.0):
    return TraceRequest(arrival_s, 10, 10, session=session, turn=number, think_s=think_s)


TURNS = [
    turn(0.0, "a", 0),
    turn(1.0, "b", 0),
    turn(2.0, "a", 1, think_s=5.0),
    turn(3.0, None, 0),
    turn(4.0, "a", 2, think_s=1.0),
]


def test_closed_sessions_wait_for_the_answer_and_the_reader():
    schedule = Schedule(TURNS, Sessions.closed)
    assert schedule.pop(100.0) == [(0.0, 0), (1.0, 1), (3.0, 3)]
    assert schedule.next_s is None
    schedule.succeeded(0, 40.0)
    assert schedule.next_s == 45.0
    assert schedule.pop(44.9) == []
    assert schedule.pop(45.0) == [(45.0, 2)]
    assert schedule.has_next(2)
    schedule.succeeded(2, 50.0)
    assert schedule.pop(51.0) == [(51.0, 4)]
    assert not schedule.has_next(4)
    schedule.succeeded(4, 60.0)
    assert schedule.next_s is None
    assert schedule.previous == {2: 0, 4: 2}


def test_open_sessions_wait_for_no_answer():
    schedule = Schedule(TURNS, Sessions.open)
    assert schedule.pop(2.0) == [(0.0, 0), (1.0, 1), (2.0, 2)]
    assert schedule.next_s == 3.0
    assert not schedule.has_next(0)
    schedule.succeeded(0, 2.0)
    assert schedule.pop(9.0) == [(3.0, 3), (4.0, 4)]


def test_a_failure_ends_its_session_and_no_other():
    schedule = Schedule(TURNS, Sessions.closed)
    schedule.pop(100.0)
    assert schedule.failed(0, 1.0) == [2, 4]
    assert schedule.failed(1, 1.0) == []
    schedule.succeeded(2, 1.0)
    assert schedule.next_s is None


def test_a_session_whose_first_turns_are_missing_starts_with_what_is_there():
    schedule = Schedule([turn(7.0, "a", 4, 2.0), turn(6.0, "a", 3, 1.0)], Sessions.closed)
    assert schedule.pop(6.0) == [(6.0, 1)]
    schedule.succeeded(1, 10.0)
    assert schedule.pop(12.0) == [(12.0, 0)]


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.sampled_from([None, "a", "b", "c"]), st.floats(0, 10)),
        min_size=1,
    ),
    st.sampled_from(Sessions),
)
def test_every_request_is_due_once_and_never_early(drawn, sessions):
    requests = [
        turn(arrival, session, number, think)
        for number, (arrival, session, think) in enumerate(drawn)
    ]
    schedule = Schedule(requests, sessions)
    seen, now = [], 0.0
    while schedule.next_s is not None:
        now = max(now, schedule.next_s)
        for due_s, index in schedule.pop(now):
            assert due_s <= now
            if index not in schedule.previous:
                assert due_s == requests[index].arrival_s
            seen.append(index)
            schedule.succeeded(index, now + 1.0)
    assert sorted(seen) == list(range(len(requests)))


def test_what_is_due_by_a_moment_is_known_and_stays_due():
    schedule = Schedule(TURNS, Sessions.closed)
    assert sorted(schedule.due_by(2.5)) == [0, 1]  # index 2 waits for the answer of 0
    assert [index for _, index in schedule.pop(2.5)] == [0, 1]
    assert schedule.due_by(2.5) == []


def test_a_closed_loop_sends_the_next_one_when_one_ends():
    requests = [turn(9.0, None, 0) for _ in range(4)]
    loop = ClosedLoop(requests, Sessions.closed, 2)
    assert sorted(loop.due_by(0.0)) == [0, 1]
    assert loop.pop(0.0) == [(0.0, 0), (0.0, 1)]
    assert loop.next_s is None
    loop.succeeded(1, 3.0)
    assert loop.pop(3.5) == [(3.0, 2)]
    assert loop.failed(0, 4.0) == []
    assert loop.pop(4.0) == [(4.0, 3)]
    loop.succeeded(2, 5.0)
    loop.succeeded(3, 6.0)
    assert loop.next_s is None


def test_a_session_keeps_its_order_in_a_closed_loop():
    loop = ClosedLoop(TURNS, Sessions.closed, 2)
    assert loop.pop(0.0) == [(0.0, 0), (0.0, 1)]
    loop.succeeded(1, 1.0)  # index 2 waits for the answer of 0
    assert loop.pop(1.0) == [(1.0, 3)]
    loop.succeeded(0, 2.0)
    assert loop.pop(2.0) == [(2.0, 2)], "no think time"
    assert loop.failed(2, 3.0) == [4]
    assert loop.next_s is None


@given(
    st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=1, max_size=30),
    st.integers(1, 8),
    st.sampled_from(Sessions),
    st.randoms(),
)
def test_a_closed_loop_is_as_full_as_it_can_be(drawn, places, sessions, order):
    requests = [turn(float(number), session, number) for number, session in enumerate(drawn)]
    loop = ClosedLoop(requests, sessions, places)
    under_way, seen, now = [], [], 0.0
    while True:
        for due_s, index in loop.pop(now):
            assert due_s <= now
            under_way.append(index)
            seen.append(index)
        ready = [
            index
            for index in range(len(requests))
            if index not in seen
            and (loop.previous.get(index) is None or loop.previous[index] in seen)
            and loop.previous.get(index) not in under_way
        ]
        assert len(under_way) <= places
        assert len(under_way) == places or not ready
        if not under_way:
            break
        now += 1.0
        loop.succeeded(under_way.pop(order.randrange(len(under_way))), now)
    assert sorted(seen) == list(range(len(requests)))
