"""How long the way was not free, beside what the forecast had said."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokenflow_sgl.contract import Streams
from tokenflow_sgl.lifecycle.wait_calibration import FEW, KEPT, SURE, WaitCalibration
from tokenflow_sgl.policy.outlook import AHEAD, WaitOutlook

LOOK = 0.25


@pytest.fixture
def calibration() -> WaitCalibration:
    return WaitCalibration()


@pytest.fixture
def none(make_state: Any) -> Streams:
    found: Streams = make_state([]).streams
    return found


def forecast(at: float, wait: float) -> WaitOutlook:
    return WaitOutlook(at, np.array([100.0]), np.full((1, len(AHEAD)), wait))


def shut(calibration: WaitCalibration, streams: Streams, begin: float, *, lasts: float) -> float:
    """Looks that say 40 s while the way is not free, then one when it is; returns the share."""
    for at in np.arange(begin, begin + lasts, LOOK).tolist():
        calibration.seen(forecast(at, 40.0), streams)
    return calibration.seen(forecast(begin + lasts, 0.0), streams).lasted


def test_waits_that_last_a_tenth_are_told_as_such(calibration, none) -> None:
    shares = [shut(calibration, none, 100.0 * number, lasts=4.0) for number in range(10)]
    assert shares[:FEW] == [1.0] * FEW
    assert shares[FEW:] == pytest.approx([SURE * 4.0 / 40.0] * (10 - FEW), rel=0.1)


def test_what_lasted_longer_long_ago_is_forgotten(calibration, none) -> None:
    for number in range(KEPT):
        longer = shut(calibration, none, 100.0 * number, lasts=20.0)
    for number in range(KEPT, 2 * KEPT):
        shorter = shut(calibration, none, 100.0 * number, lasts=4.0)
    assert longer == pytest.approx(0.45, rel=0.1)
    assert shorter == pytest.approx(0.09, rel=0.1)


def test_no_more_is_told_than_the_forecast_says(calibration, none) -> None:
    for number in range(5):
        assert shut(calibration, none, 1000.0 * number, lasts=200.0) == 1.0


@pytest.mark.parametrize(("prompt", "free"), [(100, True), (20, False)])
def test_one_that_came_later_and_has_a_token_shows_that_it_is_free(
    calibration, make_state, make_stream, prompt, free
) -> None:
    """The forecast never says so: another always waits. A shorter prompt has overtaken others."""
    for at in np.arange(0.0, 60.0, LOOK).tolist():
        later = make_stream(arrival=at - 2.0, prompt=prompt, generated=1)
        told = calibration.seen(forecast(at, 40.0), make_state([later]).streams)
    assert (told.lasted < 0.1) is free


def test_nothing_is_compared_while_the_way_is_free(calibration, none) -> None:
    for number in range(100):
        assert calibration.seen(forecast(LOOK * number, 0.1), none).lasted == 1.0
