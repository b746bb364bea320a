"""What a plan takes, and how it is cut down to what fits."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.choices import Staging
from tokenflow_sgl.engine.layerwise.even_spread import EvenSpread
from tokenflow_sgl.engine.layerwise.layer_planners import make_layer_planner
from tokenflow_sgl.engine.layerwise.layer_plans import (
    StreamsInStep,
    fitting,
    layout_of,
    masks_of,
    needed_cells,
)
from tokenflow_sgl.engine.layerwise.link_clock import StepSpeeds
from tokenflow_sgl.engine.layerwise.solved_layers import SolvedLayers
from tokenflow_sgl.placement import any_number, resident_blocks, staging_blocks
from tokenflow_sgl.placement.layouts import Layouts
from tokenflow_sgl.policy import ConfigError


def streams(pages, *, layers=4, cells=40, running=None, fresh=(), paused=()) -> StreamsInStep:
    """fresh, paused: rows."""
    pages = np.array(pages)
    running = np.ones(pages.size, bool) if running is None else np.array(running)
    return StreamsInStep(
        rows=np.arange(pages.size),
        pages=pages,
        read=pages * running,
        running=running,
        fresh=np.isin(np.arange(pages.size), fresh),
        paused=np.isin(np.arange(pages.size), paused),
        layouts=((),) * pages.size,
        layers=layers,
        cells=cells,
    )


def test_a_layout_and_its_mask() -> None:
    masks = masks_of([(), (1, 4), (2,)], 4)
    assert masks.sum() == 3
    assert [layout_of(mask) for mask in masks.T] == [(), (1, 4), (2,)]
    for wrong in (0, 5):
        with pytest.raises(ValueError, match="allowed are layers from 1 to 4"):
            masks_of([(wrong,)], 4)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(0, 2**31))
def test_needed_cells_are_those_of_the_planner_with_a_buffer_for_each_stream(sizes, seed) -> None:
    layouts = Layouts(6, any_number(6).choices)
    chance = random.Random(seed)
    chosen = np.array([chance.randrange(len(layouts)) for _ in sizes])
    masks = masks_of([layouts.choices[n] for n in chosen], 6)
    found = needed_cells(masks, np.array(sizes), np.array(sizes))
    floats = np.array(sizes, dtype=float)
    expected = resident_blocks(floats, chosen, layouts)
    assert found == expected + staging_blocks(floats, chosen, layouts, Staging.stream)


def test_what_fits_is_left_as_it_is() -> None:
    masks = masks_of([(1,), (2, 3)], 4)
    assert fitting(masks, streams([5, 5])) is masks


def test_the_largest_that_rests_goes_first_then_the_largest_of_the_step() -> None:
    given = streams([4, 6, 5, 3], cells=100, running=[True, True, False, False])
    masks = masks_of([()] * 4, 4)  # 72 cells

    def whole(cells: int) -> list[bool]:
        view = dataclasses.replace(given, cells=cells)
        found = fitting(masks, view)
        assert needed_cells(found, given.pages, given.read) <= cells
        return found.all(axis=0).tolist()

    assert whole(72) == [False] * 4
    assert whole(71) == [False, False, True, False]
    assert whole(51) == [False, False, True, True]
    assert whole(39) == [False, True, True, True]
    assert whole(10) == [True] * 4


def test_what_is_paused_goes_before_what_rests() -> None:
    given = streams([4, 6, 5], cells=52, running=[True, False, False], paused=[2])  # of 60
    assert fitting(masks_of([()] * 3, 4), given).all(axis=0).tolist() == [False, False, True]


def test_some_of_the_streams() -> None:
    given = dataclasses.replace(streams([4, 6, 5], paused=[1]), layouts=((1,), (2,), (3,)))
    some = given.of(~given.paused)
    assert (some.pages.tolist(), some.layouts) == ([4, 5], ((1,), (3,)))
    assert not some.paused.any()
    assert some.cells == given.cells


@given(
    st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=8),
    st.integers(0, 2**31),
    st.integers(0, 300),
)
def test_a_step_always_fits_a_cell_for_each_of_its_pages(sizes, seed, more) -> None:
    pages, running = (list(each) for each in zip(*sizes, strict=True))
    cells = sum(n for n, runs in sizes if runs) + more
    chance = random.Random(seed)
    layouts = [tuple(n for n in range(1, 5) if chance.random() < 0.5) for _ in sizes]
    view = streams(pages, cells=cells, running=running)
    for masks in (masks_of(layouts, 4), masks_of(EvenSpread().layouts(view), 4)):
        found = fitting(masks, view)
        assert needed_cells(found, view.pages, view.read) <= cells


def test_the_shipped_planner_takes_as_few_layers_as_fit() -> None:
    planner = EvenSpread()
    assert planner.layouts(streams([5, 5])) == [(), ()]
    # One layer on the host needs as much as none; two save one.
    assert planner.layouts(streams([5, 6])) == [(2, 4)] * 2
    assert planner.layouts(streams([5, 5])) == [(2, 4)] * 2, "no memory to spare"
    assert planner.layouts(streams([4, 5])) == [(), ()]
    assert planner.layouts(streams([50, 5])) == [(1, 2, 3, 4)] * 2


@pytest.mark.parametrize("name", ["odd", "no_such_module:Class", "collections:OrderedDict"])
def test_a_planner_that_is_none_is_refused(name) -> None:
    with pytest.raises(ConfigError, match="layerwise"):
        make_layer_planner(name)


def counted(planner: SolvedLayers) -> list[None]:
    """Gets one entry for each plan that is made."""
    made, make = [], planner._made

    def counting(*given):
        made.append(None)
        return make(*given)

    planner._made = counting
    return made


def test_the_solver_plans_once_speeds_are_known_and_keeps_its_plan() -> None:
    planner = SolvedLayers()
    solved = counted(planner)
    given = streams([50, 60, 40], layers=6, cells=600)
    assert planner.layouts(given) == EvenSpread().layouts(given)
    assert not solved
    known = dataclasses.replace(given, speeds=StepSpeeds(1.0, 100.0))
    made = planner.layouts(known)
    assert len({*made}) > 1, "not the same for all"
    masks = masks_of(made, 6)
    assert needed_cells(masks, given.pages + 16, given.read + 16) <= 600
    assert planner.layouts(dataclasses.replace(known, pages=given.pages + 1)) == made
    assert len(solved) == 1
    for changed in (
        {"speeds": StepSpeeds(1.0, 200.0)},
        {"pages": given.pages + 60},
        {"rows": given.rows + 1},
        {"pages": np.array([50, 2, 40]), "fresh": np.array([False, True, False])},
    ):
        before = len(solved)
        planner.layouts(dataclasses.replace(known, **changed))
        assert len(solved) == before + 1


def test_where_no_placement_fits_the_solver_leaves_it_to_the_even_spread() -> None:
    planner = SolvedLayers()
    solved = counted(planner)
    given = dataclasses.replace(streams([50, 50], cells=60), speeds=StepSpeeds(1.0, 100.0))
    assert planner.layouts(given) == EvenSpread().layouts(given)
    assert len(solved) == 1
