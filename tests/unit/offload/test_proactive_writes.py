"""The write-through of running streams in the policy's decisions."""

from __future__ import annotations

import dataclasses

import pytest

from tokenflow_sgl.contract import Cause, Mode, Phase, Pool, Preempt, Tier, Write
from tokenflow_sgl.costs import Links, MeasuredLink
from tokenflow_sgl.offload.write_through import MOST, proactive_writes
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy

FAST = Links(MeasuredLink(1e6), MeasuredLink(1e6))


@pytest.fixture
def ahead(make_stream):
    """A running stream far ahead of its reader."""

    def stream(**columns):
        return make_stream(Phase.RUNNING, slack=30.0, generated=300, unwritten=300, **columns)

    return stream


def test_a_stream_to_be_preempted_is_written_first_and_whole(make_state, ahead):
    state = make_state([ahead(), ahead()], links=FAST)
    gone = (Preempt(11, Cause.EXCHANGE),)
    assert proactive_writes(state, gone) == (Write(11, 300), Write(10, 300))
    # Even where the link has no time for it: it has to be written anyhow.
    slow = dataclasses.replace(state, links=Links(MeasuredLink(1.0), MeasuredLink(1.0)))
    assert proactive_writes(slow, gone) == (Write(11, 300),)


def test_of_many_victims_those_with_the_most_left_are_written(make_state, make_stream):
    """A burst of preemptions does not become a burst of copies; the rest comes at the release."""
    left = [100, 400, 50, 300, 200]
    streams = [make_stream(Phase.RUNNING, slack=9.0, generated=500, unwritten=n) for n in left]
    others = [make_stream(Phase.RUNNING, slack=30.0, generated=500, unwritten=400)] * 3
    state = make_state([*streams, *others], links=FAST)
    gone = tuple(Preempt(10 + n, Cause.EXCHANGE) for n in range(len(left)))
    assert proactive_writes(state, gone) == (Write(11, 400), Write(13, 300))
    assert proactive_writes(state, gone[:1]) == (Write(10, 100), Write(15, 400))
    assert len(proactive_writes(state, ())) == MOST


def test_the_tail_of_a_preempted_stream_is_whole_pages(make_state, ahead):
    state = make_state([ahead()], links=FAST, page=128)
    assert proactive_writes(state, (Preempt(10, Cause.PARK),)) == (Write(10, 256),)


@pytest.mark.parametrize(
    "columns", [{"slack": -0.1}, {"preemptible": False}, {"phase": Phase.DRAINING}]
)
def test_a_stream_that_cannot_be_preempted_is_not_written(make_state, ahead, columns):
    assert proactive_writes(make_state([{**ahead(), **columns}], links=FAST), ()) == ()


def test_nothing_is_written_without_a_host(make_state, ahead):
    assert proactive_writes(make_state([ahead()], links=FAST, host=0), ()) == ()


def test_no_other_copy_is_dropped_for_a_stream_that_runs_on(make_state, ahead):
    """Where the host keeps no copy of what is on the device once it needs its memory."""

    def host(state, free):
        whole = Tier(kv=Pool(20_000, free))
        memory = dataclasses.replace(state.memory, host=whole, mirrored=False)
        return dataclasses.replace(state, memory=memory)

    state = make_state([ahead(), ahead()], links=FAST)
    gone = (Preempt(11, Cause.EXCHANGE),)
    assert proactive_writes(host(state, 400), ()) == (Write(10, 300), Write(11, 100))
    assert proactive_writes(host(state, 400), gone) == (Write(11, 300), Write(10, 100))
    assert proactive_writes(host(state, 0), ()) == ()
    assert proactive_writes(host(state, 0), gone) == (Write(11, 300),), "it is copied anyhow"


def test_nothing_is_written_without_stress(make_state, ahead):
    policy = WorkingSetPolicy()
    alone = policy.decide(make_state([ahead()], total=1_000_000, links=FAST))
    assert alone.mode is Mode.IDLE
    assert alone.write == ()


def test_proactive_writes_can_be_switched_off(make_state, make_stream, ahead):
    state = make_state([ahead(), make_stream(Phase.WAITING)], total=1000, free=0, links=FAST)
    assert WorkingSetPolicy().decide(state).write
    assert not WorkingSetPolicy(WorkingSetConfig(write_ahead=False)).decide(state).write
