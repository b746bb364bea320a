"""The baselines, on batches that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.placement import Machine, every_kth, fits, solve, step_seconds
from tokenflow_sgl.placement.baselines import (
    deepspeed_seconds,
    dynamic_heuristic,
    flexgen,
    flexgen_plus,
    slo_aware,
)

LAYOUTS = every_kth(9)  # 0, 1, 2, 3, 4 and 9 layers
MACHINE = Machine(np.ones(9), 3.0, 70.0)
STEP_1, STEP_16 = np.array([3.0, 6.0]), np.array([4.0, 6.0])


def numbers(layout) -> list[int]:
    return [len(LAYOUTS.choices[choice]) for choice in layout]


def test_deepspeed_copies_a_layer_while_one_computes() -> None:
    assert deepspeed_seconds(STEP_1, MACHINE) == pytest.approx(3.0 + 8 * 3.0 + 1.0)
    assert deepspeed_seconds(np.array([1.5]), MACHINE) == pytest.approx(0.5 + 9.0)


def test_flexgen_plus_takes_placement_a_of_fig_3() -> None:
    for sizes in (STEP_1, STEP_16):
        layout = flexgen_plus(sizes, LAYOUTS, MACHINE)
        assert numbers(layout) == [3, 3]


def test_flexgen_has_one_layout_for_all_batches() -> None:
    wide = Machine(np.ones(9), 3.0, 90.0)
    assert LAYOUTS.choices[flexgen([(STEP_1, wide)], LAYOUTS)] == ()
    assert LAYOUTS.choices[flexgen([(STEP_1, wide), (STEP_16, MACHINE)], LAYOUTS)] == (3, 6, 9)
    assert flexgen([(STEP_1, wide), (STEP_1, Machine(np.ones(9), 3.0, 1.0))], LAYOUTS) is None


def test_slo_aware_offloads_what_the_objective_allows() -> None:
    assert numbers(slo_aware(100.0)(STEP_1, LAYOUTS, MACHINE)) == [9, 9]
    assert numbers(slo_aware(12.5)(STEP_1, LAYOUTS, MACHINE)) == [3, 3]
    assert numbers(slo_aware(1.0)(STEP_1, LAYOUTS, MACHINE)) == [3, 3]  # none keeps it


def test_the_heuristic_offloads_the_largest_stream_first() -> None:
    assert numbers(dynamic_heuristic(STEP_1, LAYOUTS, MACHINE)) == [0, 3]
    assert numbers(dynamic_heuristic(STEP_1, LAYOUTS, Machine(np.ones(9), 3.0, 90.0))) == [0, 0]
    # All of the larger one is not enough: then the smaller one follows.
    assert numbers(dynamic_heuristic(STEP_1, LAYOUTS, Machine(np.ones(9), 3.0, 30.0))) == [2, 9]


@pytest.mark.parametrize("place", [flexgen_plus, slo_aware(20.0), dynamic_heuristic])
def test_none_is_better_than_the_solver(place) -> None:
    rng = np.random.default_rng(4)
    for _ in range(20):
        sizes = rng.integers(1, 40, 3).astype(float)
        machine = Machine(np.ones(9), 8.0, float(rng.uniform(0.3, 0.9) * sizes.sum() * 9))
        layout, placed = place(sizes, LAYOUTS, machine), solve(sizes, LAYOUTS, machine)
        assert layout is not None and placed is not None
        assert fits(sizes, layout, LAYOUTS, machine)
        assert placed.seconds <= step_seconds(sizes, layout, LAYOUTS, machine) * (1 + 2e-5)


@pytest.mark.parametrize("place", [flexgen_plus, slo_aware(20.0), dynamic_heuristic])
def test_what_does_not_fit_has_no_placement(place) -> None:
    assert place(STEP_1, LAYOUTS, Machine(np.ones(9), 3.0, 8.0)) is None
