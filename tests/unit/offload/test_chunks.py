"""How much of a prefetch is loaded now, and when it makes way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.contract import Growth
from tokenflow_sgl.offload import DeviceRoom, chunk

TOKENS = st.integers(0, 5000)
PAGES = st.sampled_from([1, 16, 64])


@pytest.mark.parametrize(
    ("missing", "room", "part", "page", "loaded"),
    [
        (100, 100, 0, 1, 100),
        (100, 99, 0, 1, 0),  # as a whole, or not at all
        (100, 99, 50, 1, 99),
        (100, 99, 100, 1, 0),
        (100, 49, 50, 1, 0),
        (90, 89, 50, 16, 80),  # whole pages
        (90, 63, 50, 16, 0),  # of which there are not enough
        (30, 30, 50, 16, 30),  # the last chunk may be small
        (100, -5, 50, 1, 0),
        (100, -5, 0, 1, 0),
    ],
)
def test_a_chunk(missing, room, part, page, loaded) -> None:
    assert chunk(missing, room, part, page) == loaded


@given(missing=TOKENS, room=st.integers(-5000, 5000), part=TOKENS, page=PAGES)
def test_no_chunk_takes_what_is_not_free(missing, room, part, page) -> None:
    loaded = chunk(missing, room, part, page)
    assert 0 <= loaded <= missing
    assert loaded <= max(room, 0)
    if loaded < missing:
        assert loaded % page == 0
        assert loaded == 0 or loaded >= part > 0


@given(missing=TOKENS, part=st.integers(1, 5000), page=PAGES, room=st.integers(0, 500))
def test_a_stream_is_loaded_in_the_end_where_memory_becomes_free(missing, part, page, room) -> None:
    left, free, passes = missing, 0, 0
    while left:
        free += room + page
        loaded = chunk(left, free, part, page)
        left, free = left - loaded, free - loaded
        passes += 1
        assert passes <= 10_001


def test_prefetches_leave_running_streams_their_reserve() -> None:
    assert DeviceRoom(free=1000, promised=100, running=9, growth=Growth(1)).for_prefetch == 660
    assert DeviceRoom(free=1000, promised=100, running=9, growth=Growth(64)).for_prefetch == 260
    # 24 steps of 2.5 tokens, and 8 slots for drafts.
    drafts = Growth(1, 2.5, ahead=8)
    assert DeviceRoom(free=1000, promised=100, running=9, growth=drafts).for_prefetch == 220


@pytest.mark.parametrize(
    ("free", "promised", "page", "scarce"),
    [(12, 0, 1, False), (11, 0, 1, True), (20, 9, 1, True), (48, 0, 16, False), (47, 0, 16, True)],
)
def test_memory_is_scarce_when_the_next_steps_do_not_fit(free, promised, page, scarce) -> None:
    assert DeviceRoom(free, promised, running=3, growth=Growth(page)).scarce is scarce
