"""The solver against enumeration and against scipy's MILP, which know nothing of its methods."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.placement import (
    NEW,
    Installed,
    Layouts,
    Machine,
    Placement,
    SearchEffort,
    Staging,
    decode_step,
    every_kth,
    half_phases,
    kernels_of,
    lower_bound,
    needed_blocks,
    solve,
    step_seconds,
)
from tokenflow_sgl.placement.milp import solve_milp

FIG_3 = Layouts(9, ((), (3, 6, 9), (4, 8)))
MACHINE = Machine(compute=np.ones(9), bandwidth=3.0, memory=70.0)


def best_by_enumeration(sizes, layouts, machine) -> float:
    best = np.inf
    for layout in itertools.product(range(len(layouts)), repeat=sizes.size):
        chosen = np.array(layout)
        if needed_blocks(sizes, chosen, layouts, machine) <= machine.memory * (1 + 1e-9):
            best = min(best, decode_step(sizes, chosen, layouts, machine).seconds)
    return best


def random_batch(seed: int, streams: int, layers: int, share: float | None = None):
    """Sizes and a machine with memory for a share of their KV."""
    rng = np.random.default_rng(seed)
    sizes = np.clip(np.round(rng.lognormal(np.log(200), 1.0, streams)), 10, 2000)
    share = rng.uniform(0.2, 0.9) if share is None else share
    machine = Machine(rng.uniform(0.8e-3, 1.5e-3, layers), 12e9 / 65536, share * sizes.sum() * 32)
    return sizes, machine


def test_fig_3_at_both_steps() -> None:
    for sizes, layout, stall in (([3.0, 6.0], (0, 1), 0.0), ([4.0, 6.0], (2, 1), 2.0)):
        placed = solve(np.array(sizes), FIG_3, MACHINE)
        assert placed is not None and placed.exact
        assert (placed.seconds - 9.0) * 3.0 == pytest.approx(stall, abs=1e-4)
        if stall:  # at step 1 both B and C have none
            assert tuple(placed.layout) == layout


@st.composite
def small_batches(draw):
    layers = draw(st.integers(1, 6))
    sizes = np.array(draw(st.lists(st.integers(1, 30), min_size=1, max_size=3)), dtype=np.float64)
    compute = np.array(draw(st.lists(st.floats(0.1, 2.0), min_size=layers, max_size=layers)))
    memory = draw(st.floats(0.0, 1.1)) * float(sizes.sum()) * layers
    staging = draw(st.sampled_from(list(Staging)))
    layouts = draw(st.sampled_from([every_kth, half_phases]))(layers)
    return sizes, layouts, Machine(compute, draw(st.floats(1.0, 60.0)), memory, staging)


@settings(max_examples=150, deadline=None)
@given(small_batches())
def test_it_is_the_best_of_all_placements(batch) -> None:
    best = best_by_enumeration(*batch)
    placed = solve(*batch)
    bound = lower_bound(*batch)
    if placed is None:
        assert best == np.inf
        return
    assert placed.exact
    assert best <= placed.seconds * (1 + 1e-9)
    assert placed.seconds <= best * (1 + 2e-5)
    assert bound == pytest.approx(placed.bound)
    assert bound <= best * (1 + 2e-6)
    assert needed_blocks(batch[0], placed.layout, *batch[1:]) <= batch[2].memory * (1 + 1e-6) + 1e-9
    played = decode_step(batch[0], placed.layout, *batch[1:]).seconds
    assert placed.seconds == pytest.approx(played, rel=1e-9)
    assert step_seconds(batch[0], placed.layout, *batch[1:]) == pytest.approx(played, rel=1e-9)


def test_worse_placements_are_there_to_be_missed() -> None:
    # The control: were all placements alike, the test above could not fail.
    sizes, machine = random_batch(1, 3, 8, share=0.15)
    layouts = every_kth(8)
    seconds = {
        decode_step(sizes, np.array(layout), layouts, machine).seconds
        for layout in itertools.product(range(len(layouts)), repeat=3)
        if needed_blocks(sizes, np.array(layout), layouts, machine) <= machine.memory
    }
    assert max(seconds) > 1.1 * min(seconds)


@pytest.mark.parametrize(("streams", "above"), [(3, 1e-4), (8, 0.02), (24, 0.02)])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_scipys_milp_finds_no_better_one(seed, streams, above) -> None:
    sizes, machine = random_batch(seed, streams, 12)
    layouts = every_kth(12)
    placed = solve(sizes, layouts, machine)
    oracle = solve_milp(sizes, layouts, machine, gap=1e-5 if streams < 20 else 1e-3)
    assert placed is not None and oracle is not None
    played = decode_step(sizes, oracle.layout, layouts, machine).seconds
    assert oracle.seconds == pytest.approx(played, rel=1e-5)
    assert placed.bound <= oracle.seconds * (1 + 1e-5)
    assert placed.seconds <= oracle.seconds * (1 + above)
    assert oracle.bound <= placed.seconds * (1 + 1e-5)


def test_what_does_not_fit_is_no_placement() -> None:
    machine = Machine(np.ones(9), 3.0, 9.5)  # with all offloaded, 10 blocks are staged
    sizes = np.array([4.0, 6.0])
    assert solve(sizes, every_kth(9), machine) is None
    assert lower_bound(sizes, every_kth(9), machine) == np.inf
    assert solve_milp(sizes, every_kth(9), machine) is None
    fits = Machine(np.ones(9), 3.0, 10.5)
    assert solve(sizes, every_kth(9), fits) is not None


def test_with_memory_for_all_nothing_is_offloaded() -> None:
    placed = solve(np.array([4.0, 6.0, 5.0]), every_kth(9), Machine(np.ones(9), 3.0, 135.0))
    assert placed is not None and placed.seconds == 9.0
    assert tuple(placed.layout) == (0, 0, 0)


@pytest.mark.parametrize("streams", [4, 12])
def test_the_same_input_gives_the_same_placement(streams) -> None:
    sizes, machine = random_batch(5, streams, 16)
    first, again = (solve(sizes, half_phases(16), machine) for _ in range(2))
    assert first is not None and again is not None
    assert np.array_equal(first.layout, again.layout)


@pytest.mark.slow
@pytest.mark.long  # numba compiles for 13 s, once for each state of the sources
@pytest.mark.parametrize("streams", [2, 6, 40])
def test_compiled_it_gives_the_same_placement(streams) -> None:
    sizes, machine = random_batch(7, streams, 32)
    layouts = every_kth(32)
    plain = solve(sizes, layouts, machine)
    fast = solve(sizes, layouts, machine, kernels=kernels_of(compiled=True))
    assert plain is not None and fast is not None
    assert np.array_equal(plain.layout, fast.layout)
    assert fast.seconds == pytest.approx(plain.seconds, rel=1e-12)
    assert fast.bound == pytest.approx(plain.bound, rel=1e-9)
    assert kernels_of(compiled=True).compiled


def migrated(sizes, layouts, before, after) -> float:
    """Blocks that come to the device between two placements."""
    return sum(
        size * len(set(layouts.choices[old]) - set(layouts.choices[new]))
        for size, old, new in zip(sizes, before, after, strict=True)
        if old != NEW
    )


@pytest.mark.parametrize("streams", [4, 16])
def test_a_placement_in_force_is_left_for_a_gain_only(streams) -> None:
    sizes, machine = random_batch(11, streams, 16, share=0.5)
    layouts = half_phases(16)
    before = solve(sizes, layouts, machine)
    assert before is not None
    grown = sizes + 1.0
    free = solve(grown, layouts, machine)
    kept = solve(grown, layouts, machine, installed=Installed(layouts, before.layout))
    assert isinstance(free, Placement) and isinstance(kept, Placement)
    moved = migrated(grown, layouts, before.layout, kept.layout)
    assert moved <= migrated(grown, layouts, before.layout, free.layout)
    # What a migration of 16 steps' share costs is not more than what it gains.
    cost = kept.seconds + moved / machine.bandwidth / 16
    slack = 1.003 if streams > 8 else 1.002
    again = migrated(grown, layouts, before.layout, free.layout) / machine.bandwidth / 16
    assert cost <= (free.seconds + again) * slack


def test_streams_that_are_new_migrate_for_nothing() -> None:
    sizes, machine = random_batch(12, 4, 9)
    layouts = every_kth(9)
    fresh = Installed(layouts, np.full(4, NEW))
    free, placed = solve(sizes, layouts, machine), solve(sizes, layouts, machine, installed=fresh)
    assert free is not None and placed is not None
    assert placed.seconds == pytest.approx(free.seconds, rel=2e-6)


def test_migration_counts_in_scipys_milp_too() -> None:
    sizes, machine = random_batch(13, 4, 9, share=0.4)
    layouts = every_kth(9)
    before = Installed(layouts, np.full(4, len(layouts) - 1), steps=1.0)
    placed = solve(sizes, layouts, machine, installed=before)
    oracle = solve_milp(sizes, layouts, machine, installed=before, gap=1e-6)
    assert placed is not None and oracle is not None

    def cost(found: Placement) -> float:
        moved = migrated(sizes, layouts, before.layout, found.layout)
        return found.seconds + moved / machine.bandwidth

    assert cost(placed) == pytest.approx(cost(oracle), rel=1e-4)
    free = solve(sizes, layouts, machine)
    assert free is not None and cost(placed) < cost(free)


def test_less_effort_is_less_work() -> None:
    sizes, machine = random_batch(3, 8, 16, share=0.5)
    least = solve(sizes, every_kth(16), machine, effort=SearchEffort(0.05, 1, False, 0))
    most = solve(sizes, every_kth(16), machine)
    assert least is not None and most is not None
    assert least.work < most.work
    assert most.seconds <= least.seconds


@pytest.mark.parametrize(
    ("sizes", "layers", "message"),
    [
        ([], 9, "sizes has a value that is not above 0, or none"),
        ([1.0, 0.0], 9, "sizes has a value that is not above 0, or none"),
        ([1.0, np.nan], 9, "sizes has a value that is not above 0, or none"),
        ([1.0], 8, "layouts are for 8 layers; allowed here is 9"),
    ],
)
def test_bad_values_are_named(sizes, layers, message) -> None:
    with pytest.raises(ValueError, match=message):
        solve(np.array(sizes), every_kth(layers), MACHINE)
