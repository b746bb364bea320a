"""What a plan would need to have no stalls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tokenflow_sgl.placement import Machine, every_kth, solve
from tokenflow_sgl.placement.changes import bandwidth_without_stalls, memory_without_stalls

LAYOUTS = every_kth(9)
SIZES = np.array([4.0, 6.0])
MACHINE = Machine(np.ones(9), 3.0, 60.0)


def stalled(machine: Machine) -> float:
    placed = solve(SIZES, LAYOUTS, machine)
    assert placed is not None
    return placed.seconds - 9.0


def test_with_that_memory_it_does_not_stall_and_with_less_it_does() -> None:
    memory = memory_without_stalls(SIZES, LAYOUTS, MACHINE)
    assert stalled(MACHINE) > 1.0
    assert stalled(replace(MACHINE, memory=memory)) <= 0.01
    assert stalled(replace(MACHINE, memory=0.97 * memory)) > 0.01


def test_with_that_link_it_does_not_stall_and_with_a_slower_one_it_does() -> None:
    bandwidth = bandwidth_without_stalls(SIZES, LAYOUTS, MACHINE)
    assert bandwidth is not None
    assert stalled(replace(MACHINE, bandwidth=bandwidth)) <= 0.01
    assert stalled(replace(MACHINE, bandwidth=0.97 * bandwidth)) > 0.01


def test_what_does_not_stall_would_with_a_slower_link() -> None:
    wide = replace(MACHINE, memory=85.0)
    assert stalled(wide) <= 0.01
    bandwidth = bandwidth_without_stalls(SIZES, LAYOUTS, wide)
    assert bandwidth is not None and bandwidth < 2.5


def test_no_link_is_fast_enough_where_nothing_fits() -> None:
    assert bandwidth_without_stalls(SIZES, LAYOUTS, replace(MACHINE, memory=9.0)) is None
