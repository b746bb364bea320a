"""The measured rate of the link between device and host memory."""

from __future__ import annotations

import math

import pytest

from tokenflow_sgl.costs import LatestRate, MeasuredLink, TransferRate
from tokenflow_sgl.costs.transfers import MEMORY_TOKENS


def test_nothing_is_known_at_first():
    assert math.isnan(TransferRate().rate)
    assert math.isnan(MeasuredLink().room(1.0))


@pytest.mark.parametrize("kind", [TransferRate, LatestRate])
@pytest.mark.parametrize(
    ("tokens", "seconds"), [(0, 1.0), (5, 0.0), (5, -1.0), (5, math.inf), (5, math.nan)]
)
def test_copies_that_say_nothing(kind, tokens, seconds):
    meter = kind()
    meter.observe(tokens, seconds)
    assert math.isnan(meter.rate)


def test_large_copies_weigh_more_than_small_ones():
    meter = TransferRate()
    meter.observe(1000, 1.0)
    meter.observe(10, 1.0)
    assert meter.rate == pytest.approx(1010 / 2, rel=0.01)


def test_a_change_is_followed():
    meter = TransferRate()
    for _ in range(50):
        meter.observe(1000, 0.1)
    for _ in range(5 * MEMORY_TOKENS // 1000):
        meter.observe(1000, 1.0)
    assert meter.rate == pytest.approx(1000, rel=0.1)


def test_the_latest_rate_follows_a_faster_link_within_three_copies():
    mean, latest = TransferRate(), LatestRate()
    for _ in range(20):
        mean.observe(128, 128 / 5_000)
        latest.observe(128, 128 / 5_000)
    for _ in range(3):
        mean.observe(128, 128 / 40_000)
        latest.observe(128, 128 / 40_000)
    assert latest.rate == pytest.approx(40_000)
    assert mean.rate < 10_000, "which is why there are two"


def test_one_copy_that_was_held_up_does_not_count():
    latest = LatestRate()
    for seconds in (0.01, 0.011, 0.5, 0.01, 0.009):
        latest.observe(1000, seconds)
    assert latest.rate == pytest.approx(100_000)


def test_room_is_what_arrives_in_time():
    assert MeasuredLink(1000.0, 30).room(0.1) == pytest.approx(70)
    assert MeasuredLink(1000.0, 300).room(0.1) == 0.0
    assert MeasuredLink(1000.0, 30).behind(20) == MeasuredLink(1000.0, 50)
