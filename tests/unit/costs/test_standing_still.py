"""What a step costs where the scheduler's thread stood still: the next step is timed too short."""

from __future__ import annotations

import pytest

from tokenflow_sgl.costs import StepTimer, Work


@pytest.mark.parametrize("every", [97, 500])
def test_a_scheduler_that_stands_still_now_and_then_does_not_make_steps_cheap(every) -> None:
    """With overlap the device goes on meanwhile, so that the next interval is the CPU's alone."""
    timer, now, free = StepTimer(lag=1), 0.0, 0.0
    ends: list[float] = []
    for number in range(2000):
        timer.begin(now)
        prefills = number % 20 == 19
        if prefills:
            timer.launch(Work(tokens=1000, attention=500_000.0))
        else:
            timer.launch(Work(decoding=60, context=60_000))
        now += 0.0015
        free = max(now, free) + (0.06 if prefills else 0.02)
        ends.append(free)
        if number % every == every - 1:
            now += 0.1
        if number:
            now = max(now, ends[number - 1])
        timer.costs()
    costs = timer.costs()
    assert costs.decode_seconds(60, 60_000) == pytest.approx(0.02, rel=0.05)
    assert costs.prefill_seconds(1000) == pytest.approx(0.06, rel=0.2)
