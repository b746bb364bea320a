"""What of running streams is copied to the host beside the next step."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.contract import Write
from tokenflow_sgl.costs import MeasuredLink
from tokenflow_sgl.offload.write_through import CHUNK, MOST, plan_writes


def plan(unwritten, slack, link, *, seconds=0.1, page=1):
    return plan_writes(
        np.arange(len(unwritten)) + 10,
        np.array(unwritten, dtype=np.int64),
        np.array(slack, dtype=np.float64),
        link,
        seconds=seconds,
        page=page,
        running=len(unwritten),
    )


def test_the_stream_furthest_ahead_goes_first_until_the_step_is_full():
    # 3,000 tokens/s take 300 in a step of 0.1 s.
    written = plan([200, 200, 200], [3.0, 9.0, 6.0], MeasuredLink(3000.0))
    assert written == (Write(11, 200), Write(12, 100))


def test_what_is_queued_takes_its_part_of_the_step():
    assert plan([200], [5.0], MeasuredLink(3000.0, queued=200)) == (Write(10, 100),)
    assert plan([200], [5.0], MeasuredLink(3000.0, queued=300 - CHUNK + 1)) == ()


def test_short_copies_wait_until_there_is_more():
    assert plan([CHUNK - 1, CHUNK], [9.0, 1.0], MeasuredLink(1e6)) == (Write(11, CHUNK),)


def test_copies_are_whole_pages():
    assert plan([100], [5.0], MeasuredLink(1e6), page=48) == (Write(10, 96),)
    assert plan([200], [5.0], MeasuredLink(1000.0), page=48) == (Write(10, 96),)
    assert plan([255], [5.0], MeasuredLink(1e6), page=256) == ()


def test_a_pass_has_few_copies_of_the_streams_furthest_ahead():
    slack = [1.0 * number for number in range(200)]
    written = plan([500] * 200, slack, MeasuredLink(1e9))
    assert [write.slot for write in written] == [209 - n for n in range(MOST)]
    assert {write.tokens for write in written} == {500}


def test_copies_keep_pace_with_two_hundred_streams():
    """All decode together: no stream's unwritten tail grows without end."""
    unwritten = np.zeros(190, dtype=np.int64)
    slack = np.linspace(5.0, 60.0, len(unwritten))
    for _ in range(2000):
        unwritten += 1
        for write in plan(unwritten.tolist(), slack.tolist(), MeasuredLink(1e9)):
            unwritten[write.slot - 10] -= write.tokens
    assert unwritten.max() <= 4 * CHUNK


def test_a_slow_link_writes_beside_many_streams_too():
    """What the link takes may be less than the piece at which a stream is due."""
    assert plan([500] * 400, [9.0] * 400, MeasuredLink(1000.0)) == (Write(10, 100),)


def test_one_copy_at_a_time_measures_an_unknown_link():
    assert plan([500, 500], [5.0, 6.0], MeasuredLink()) == (Write(11, CHUNK),)
    assert plan([500], [5.0], MeasuredLink(queued=1)) == ()


@given(
    streams=st.lists(st.tuples(st.integers(0, 5000), st.floats(-5, 100)), max_size=30),
    rate=st.floats(1.0, 1e6),
    queued=st.integers(0, 10_000),
    seconds=st.floats(0.001, 1.0),
    page=st.sampled_from([1, 16, 64, 256]),
)
def test_never_more_than_there_is_or_than_fits(streams, rate, queued, seconds, page):
    unwritten = [tokens for tokens, _ in streams]
    slack = [seconds for _, seconds in streams]
    written = plan(unwritten, slack, MeasuredLink(rate, queued), seconds=seconds, page=page)
    assert len(written) <= MOST
    assert sum(write.tokens for write in written) <= max(rate * seconds - queued, 0.0)
    assert len({write.slot for write in written}) == len(written)
    for write in written:
        assert max(CHUNK, page) <= write.tokens <= unwritten[write.slot - 10]
        assert write.tokens % page == 0
    order = [slack[write.slot - 10] for write in written]
    assert order == sorted(order, reverse=True)


def test_no_streams():
    assert plan([], [], MeasuredLink(1e6)) == ()


@pytest.mark.parametrize("rate", [0.0, float("nan")])
def test_a_rate_that_says_nothing_counts_as_unknown(rate):
    assert plan([500], [5.0], MeasuredLink(rate)) == (Write(10, CHUNK),)
