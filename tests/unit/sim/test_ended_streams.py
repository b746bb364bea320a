"""What a plan knows of streams that end in the step under way, and of those that come in it."""

from __future__ import annotations

import pytest

from tokenflow_sgl.contract import Decision, Mode
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.ended_streams import EndedStreams
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.traces import TraceRequest


class Watching:
    """Leaves all to SGLang, and notes what it is shown: the time, streams and their arrivals."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[int], list[float]]] = []

    def decide(self, state) -> Decision:
        streams = state.streams
        self.seen.append((state.now, streams.slot.tolist(), streams.arrival.tolist()))
        return Decision(Mode.IDLE)


@pytest.fixture
def ended() -> EndedStreams:
    requests = [TraceRequest(0.0, 10, length) for length in (5, 7, 9)]
    return EndedStreams(SimulatedStreams(requests, [5, 20, 20]))


def test_the_next_plan_takes_an_ended_stream_for_a_running_one(ended) -> None:
    ended.add([0, 1])
    assert ended
    assert ended.turn(at_once=False) == []
    # The first one is at its limit: its row is left out, and its memory is known to come.
    assert ended.unknown.tolist() == [0, 1]
    assert ended.again.tolist() == [1]
    assert ended.at_limit
    ended.add([2])
    assert ended.turn(at_once=False) == [0, 1]
    assert ended.unknown.tolist() == ended.again.tolist() == [2]
    assert not ended.at_limit
    assert ended.turn(at_once=False) == [2]
    assert not ended


def test_where_each_result_is_awaited_every_end_is_known(ended) -> None:
    ended.add([1])
    assert ended.turn(at_once=True) == [1]
    assert not ended and not len(ended.again)


def test_a_preempted_row_is_not_computed_again(ended) -> None:
    ended.add([1, 2])
    ended.turn(at_once=False)
    ended.drop([1])
    assert ended.again.tolist() == [2]
    assert ended.unknown.tolist() == [1, 2]


# 100 and 40 prompt tokens at a millisecond; a step of one row or two takes 10 ms.
@pytest.mark.parametrize(
    ("settings", "known", "steps"),
    [
        ({}, False, 4),  # prefill, two decode steps, and one for nothing
        ({}, True, 3),
        ({"overlap": False}, False, 3),
    ],
)
def test_a_row_that_ends_by_itself_is_computed_once_more(
    times_of, trace, device, options, settings, known, steps
) -> None:
    given = options(**settings)
    done = simulate(trace((0.0, 100, 3)), device, given, policy="fcfs", known_lengths=known)
    assert done.steps == steps
    assert times_of(done)[0] == pytest.approx([0.1, 0.11, 0.12])
    # What is computed for nothing is not part of the run.
    assert done.run.info.duration_s == pytest.approx(0.12)


def test_what_comes_meanwhile_waits_for_the_row_that_is_computed_again(
    times_of, trace, device, options
) -> None:
    both = trace((0.0, 100, 3), (0.115, 40, 2))
    known = simulate(both, device, options(), policy="fcfs", known_lengths=True)
    assert times_of(known)[1][0] == pytest.approx(0.16)
    learned = simulate(both, device, options(), policy="fcfs")
    assert times_of(learned)[1][0] == pytest.approx(0.17)


def test_a_request_counts_from_when_the_scheduler_sees_it(trace, device, options) -> None:
    watching = Watching()
    both = trace((0.0, 100, 30), (0.105, 40, 2))
    done = simulate(both, device, options(), policy=watching)
    arrivals = {came[slots.index(1)] for _, slots, came in watching.seen if 1 in slots}
    (arrival,) = arrivals
    assert arrival == pytest.approx(0.11)  # the first pass after 0.105
    assert done.run.requests["sent_s"].to_pylist()[1] == pytest.approx(0.105)
