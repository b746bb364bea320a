"""Which server gets a newcomer, by headroom."""

from __future__ import annotations

import math

import pytest

from tokenflow_sgl.policy.routing import KnownHeadroom, newcomer_work


def told(*tokens: float | None) -> KnownHeadroom:
    """What a router knows after one reading."""
    known = KnownHeadroom()
    for server, each in enumerate(tokens):
        known.read(server, each)
    return known


@pytest.mark.parametrize(
    ("limit", "work"),
    [(1000.0, 400.0), (50.0, 150.0), (math.inf, 400.0)],
)
def test_a_newcomer_takes_its_prompt_and_30_seconds_of_reading_at_most(limit, work) -> None:
    assert newcomer_work(100.0, 10.0, limit) == work


def test_what_was_sent_counts_until_the_next_reading() -> None:
    known = told(1000.0, 900.0)
    assert [known.choose(150.0) for _ in range(4)] == [0, 1, 0, 1]
    known.read(1, 701.0)
    assert known.choose(150.0) == 1


def test_the_first_of_equals_is_taken_in_whatever_order_they_were_read() -> None:
    assert told(5.0, 5.0).choose(1.0) == 0
    known = KnownHeadroom()
    for server in (1, 0):
        known.read(server, 5.0)
    assert known.choose(1.0) == 0


def test_servers_without_headroom_are_still_chosen() -> None:
    assert told(-500.0, -100.0).choose(1.0) == 1


def test_a_server_that_is_left_out_gets_nothing_until_it_is_read_again() -> None:
    known = told(None, -100.0)
    assert [known.choose(1.0) for _ in range(3)] == [1, 1, 1]
    known.read(1, None)
    assert known.choose(1.0) is None
    known.read(0, -200.0)
    assert known.choose(1.0) == 0


def test_before_a_reading_no_server_is_known() -> None:
    assert KnownHeadroom().choose(1.0) is None
