"""Who is let in, and what those that pass do to the wait of the next ones."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lifecycle.door import Door, retry_after
from tokenflow_sgl.policy.outlook import AHEAD, WaitOutlook

EACH = 0.5
"""Seconds that each request adds."""


@pytest.fixture
def door() -> Door:
    made = Door()
    made.look(
        WaitOutlook(0.0, np.array([100.0, 1100.0]), np.array([1.0, 2.0])[:, None] + EACH * AHEAD)
    )
    return made


def test_without_an_outlook_all_pass() -> None:
    door = Door()
    assert door.expected(0.0, 100) == 0.0
    assert all(door.refuses(0.0, 100, 0.001) is None for _ in range(100))


def test_who_passes_makes_the_next_ones_wait(door) -> None:
    assert door.expected(0.0, 100) == 1.0
    assert door.refuses(0.0, 100, 1.2) is None
    assert door.expected(0.0, 100) == 1.0 + EACH
    assert door.refuses(0.0, 100, 1.2) == 1.0 + EACH
    # Who is refused does not.
    assert door.refuses(0.0, 100, 1.2) == 1.0 + EACH
    assert door.refuses(0.3, 100, 1.2) is None


def test_who_may_wait_as_long_as_it_takes_passes_and_counts(door) -> None:
    for _ in range(4):
        assert door.refuses(0.0, 100, 0.0) is None
    assert door.expected(0.0, 100) == 1.0 + 4 * EACH


def test_what_is_likely_is_a_share_of_what_is_expected() -> None:
    door = Door()
    assert door.likely(8.0) == 8.0
    door.look(WaitOutlook(0.0, np.array([100.0]), np.full((1, len(AHEAD)), 8.0), lasted=0.25))
    assert door.refuses(0.0, 100, 2.0) == 8.0, "who is refused goes by the forecast"
    assert door.likely(8.0) == 2.0


def test_retry_after_is_whole_seconds() -> None:
    assert [retry_after(wait, 2.0) for wait in (0.5, 2.1, 3.0, 3.01, 60.0)] == [1, 1, 1, 2, 58]


def test_a_longer_prompt_waits_longer(door) -> None:
    assert door.expected(0.0, 600) == 1.5
    assert door.expected(0.0) == 1.5, "a usual one"
    assert door.refuses(0.0, 1100, 1.5) == 2.0


def test_a_new_look_knows_of_all_that_passed(door) -> None:
    for _ in range(3):
        door.let_in()
    assert door.since(2.0) == (2.0, 3.0, 1.0)
    assert door.outlook is not None
    other = Door()
    other.look(door.outlook, ahead=3.0)
    assert other.expected(0.5, 100) == door.expected(0.5, 100) == 1.0 + 3 * EACH - 0.5


def test_those_that_pass_are_spread_over_replicas(door) -> None:
    assert door.outlook is not None
    door.look(door.outlook, ahead=1.0, replicas=2)
    door.let_in(4)
    assert door.expected(0.0, 100) == 1.0 + 3 * EACH
