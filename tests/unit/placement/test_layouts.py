"""The choices of each stream, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.placement import (
    Layouts,
    Machine,
    any_number,
    every,
    every_kth,
    for_batch,
    half_phases,
)


def test_the_papers_nine_for_32_layers_and_the_two_that_it_lacks() -> None:
    numbers = [len(layout) for layout in every_kth(32).choices]
    assert numbers == [0, 1, 2, 3, 4, 5, 6, 8, 10, 16, 32]
    assert len(half_phases(32)) == 18
    assert len(any_number(32)) == 33


def test_of_several_distances_the_widest_is_taken() -> None:
    # 5 layers of 32 by k = 6 alone; 4 by 7 and 8.
    assert every_kth(32).index((8, 16, 24, 32)) > 0
    assert (7, 14, 21, 28) not in every_kth(32).choices


@settings(deadline=None)
@given(st.integers(1, 100))
def test_numbers_are_those_of_the_formula(layers) -> None:
    formula = {layers // k for k in range(1, layers + 1)} | {0}
    assert {len(layout) for layout in every_kth(layers).choices} == formula
    assert set(every_kth(layers).choices) <= set(half_phases(layers).choices)
    assert {len(layout) for layout in any_number(layers).choices} == set(range(layers + 1))


def test_a_shift_moves_a_layout_forward() -> None:
    assert every(9, 3) == (3, 6, 9)
    assert every(9, 4, 2) == (2, 6)
    assert every(9, 3, 1) == (2, 5, 8)


def test_small_batches_have_all_numbers() -> None:
    assert for_batch(2) is any_number
    assert for_batch(3) is half_phases


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Layouts(0, ((),)), "layers is 0; allowed is 1 or more"),
        (lambda: Layouts(4, ()), "choices is empty"),
        (lambda: Layouts(4, ((), ())), "choices has a layout twice"),
        (lambda: Layouts(4, ((3, 2),)), "allowed are layers from 1 to 4, ascending"),
        (lambda: Layouts(4, ((5,),)), "allowed are layers from 1 to 4, ascending"),
        (lambda: every(4, 0), "distance is 0; allowed is 1 or more"),
        (lambda: every(4, 2, 2), "shift is 2; allowed is 0 to 1"),
        (lambda: Machine(np.ones((2, 2)), 1.0, 1.0), "allowed is \\(layers,\\)"),
        (lambda: Machine(np.array([-1.0]), 1.0, 1.0), "compute has a negative"),
        (lambda: Machine(np.ones(2), 0.0, 1.0), "bandwidth is 0.0; allowed is above 0"),
        (lambda: Machine(np.ones(2), 1.0, -1.0), "memory is -1.0; allowed is 0 or more"),
        (lambda: Machine(np.ones(2), 1.0, 1.0).sharded(0), "ranks is 0; allowed is 1 or more"),
    ],
)
def test_bad_values_are_named(make, message) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_ranks_add_their_links_and_memory() -> None:
    machine = Machine(np.ones(2), 3.0, 10.0).sharded(4)
    assert (machine.bandwidth, machine.memory) == (12.0, 40.0)
