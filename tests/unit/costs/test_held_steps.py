"""Steps that last as long as another rank's prefill (DP attention)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenflow_sgl.costs.steps import STALE_SECONDS, StepTimer, Work

DECODE = Work(decoding=4, context=1000, crowded=True)
HELD = replace(DECODE, held=True)


def run(timer: StepTimer, now: float, step: Work, seconds: float, count: int) -> float:
    """Steps, each at once behind the one before; returns when the last one ends."""
    timer.begin(now)
    for _ in range(count):
        timer.launch(step)
        now += seconds
        timer.begin(now)
    return now


def test_another_ranks_prefill_is_no_price_of_decoding() -> None:
    timer = StepTimer(lag=0)
    now = run(timer, 0.0, DECODE, 0.01, 100)
    run(timer, now, HELD, 0.1, 50)
    assert timer.costs().decode_seconds(4, 1000) == pytest.approx(0.01, rel=1e-3)


def test_the_time_that_it_takes_counts_as_a_prefills() -> None:
    timer = StepTimer(lag=0)
    now = run(timer, 0.0, DECODE, 0.01, 1000)
    rate = timer.kv_rate()
    assert timer.prefill_share() == 0.0
    run(timer, now, HELD, 0.1, 50)
    assert timer.prefill_share() > 0.3
    assert timer.kv_rate() == pytest.approx(rate, rel=0.01), "as if it had not been there"


def test_a_price_that_is_too_high_is_better_than_none() -> None:
    timer = StepTimer(lag=0)
    run(timer, 0.0, HELD, 0.1, 10)
    assert timer.costs().decode_seconds(4, 1000) == pytest.approx(0.1, rel=1e-3)


def test_and_than_one_that_nothing_confirms() -> None:
    timer = StepTimer(lag=0)
    now = run(timer, 0.0, DECODE, 0.01, 10)
    run(timer, now, HELD, 0.1, int(3 * STALE_SECONDS / 0.1))
    assert timer.costs().decode_seconds(4, 1000) > 0.02


def test_steps_that_are_measured_together_are_held_if_one_is() -> None:
    timer = StepTimer(lag=0)
    now = run(timer, 0.0, DECODE, 0.01, 100)
    timer.launch(DECODE)
    timer.begin(now)  # the clock stands still
    timer.launch(HELD)
    timer.begin(now + 0.4)
    assert timer.costs().decode_seconds(4, 1000) == pytest.approx(0.01, rel=1e-3)
