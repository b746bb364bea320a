"""How long a step with prompts may be that no reader notices, and how long prefills take so."""

import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy.mixed_steps import (
    FAIR_SHARE,
    LEAST_SHARE,
    MEANWHILE,
    UNNOTICED,
    elapsed_per_second,
    fair,
    rest_of_step,
    unnoticed,
)

COSTS = StepCosts(decode=(0.010, 0.001, 0.0), prefill=(0.004, 6e-5, 0.0))


def test_the_rest_of_a_step_is_its_launch_and_its_rows(make_state, make_stream) -> None:
    assert rest_of_step(make_state([make_stream()] * 20, costs=COSTS)) == pytest.approx(0.024)


def test_no_reader_notices_what_prompts_take() -> None:
    assert unnoticed(0.024, 0.05) == pytest.approx(0.05 + UNNOTICED - 0.024)


def test_prompts_get_their_least_share_of_long_steps() -> None:
    assert unnoticed(0.2, 0.05) == pytest.approx(LEAST_SHARE * 0.2)


@pytest.mark.parametrize(
    ("needed", "seconds"),
    [
        (0.0, FAIR_SHARE * 0.01),
        (0.6, FAIR_SHARE * 0.01),  # they have two thirds
        (0.8, 0.04),
        (0.95, 0.05 + UNNOTICED - 0.01),
        (1.0, 0.05 + UNNOTICED - 0.01),
    ],
)
def test_prompts_get_what_they_need_as_far_as_it_goes_unnoticed(needed, seconds) -> None:
    assert fair(0.01, unnoticed(0.01, 0.05), needed) == pytest.approx(seconds)


def test_beside_the_fastest_reader_a_prefill_takes_longer(make_state, make_stream) -> None:
    rows = [make_stream(rate=20.0)] * 19 + [make_stream(rate=5.0)]
    found = elapsed_per_second(make_state(rows, costs=COSTS))
    assert found == pytest.approx(1.0 + MEANWHILE + 0.024 / (0.05 + UNNOTICED - 0.024))


@pytest.mark.parametrize("more", [{"generated": 5, "phase": Phase.PAUSED}, {"streaming": False}])
def test_without_readers_prompts_have_the_step(make_state, make_stream, more) -> None:
    made = make_state([make_stream(**more)], costs=COSTS)
    assert elapsed_per_second(made) == 1.0 + MEANWHILE


def test_nothing_is_known_without_costs(make_state, make_stream) -> None:
    assert elapsed_per_second(make_state([make_stream()], costs=StepCosts())) == 1.0 + MEANWHILE
