from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.lab.profiles.document import ProfileError
from tokenflow_sgl.lab.profiles.surface import Surface

POINTS = st.lists(st.integers(1, 10_000), min_size=2, max_size=6, unique=True).map(sorted)
QUERY = st.floats(0.0, 30_000.0)


@st.composite
def grids(draw: st.DrawFn) -> tuple[list[float], list[float], list[list[float]]]:
    rows, columns = draw(POINTS), draw(POINTS)
    step = st.lists(st.floats(0.0, 1.0), min_size=len(columns), max_size=len(columns))
    steps = draw(st.lists(step, min_size=len(rows), max_size=len(rows)))
    values = 0.001 + np.maximum.accumulate(np.cumsum(steps, axis=1), axis=0)
    return [float(x) for x in rows], [float(x) for x in columns], values.tolist()


@given(grids())
def test_grid_points_are_met(grid: tuple[list[float], list[float], list[list[float]]]) -> None:
    rows, columns, values = grid
    surface = Surface("t", rows, columns, values)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            assert math.isclose(surface.at(row, column), values[i][j], rel_tol=1e-12)


@given(grids(), QUERY, QUERY, st.floats(0.0, 30_000.0), st.floats(0.0, 30_000.0))
def test_more_work_never_takes_less_time_nor_less_than_nothing(
    grid: tuple[list[float], list[float], list[list[float]]],
    row: float,
    column: float,
    more_rows: float,
    more_columns: float,
) -> None:
    surface = Surface("t", *grid)
    less = surface.at(row, column)
    more = surface.at(row + more_rows, column + more_columns)
    assert less > 0.0
    assert more >= less * (1.0 - 1e-9)


def test_by_hand_inside_a_cell() -> None:
    surface = Surface("t", [1, 3], [10, 20], [[1.0, 2.0], [3.0, 6.0]])
    # Half way in rows: 2.0 and 4.0; a quarter of the way in columns.
    assert surface.at(2, 12.5) == pytest.approx(2.5)


def test_below_the_grid_it_stays_at_the_edge() -> None:
    surface = Surface("t", [2, 3], [10, 20], [[1.0, 2.0], [3.0, 6.0]])
    assert surface.at(0, 0) == 1.0
    assert surface.at(1, 20) == 2.0
    assert surface.at(3, 0) == 3.0


def test_beyond_the_grid_the_last_slope_goes_on() -> None:
    surface = Surface("t", [1, 2], [10, 20], [[1.0, 2.0], [3.0, 6.0]])
    assert surface.at(1, 30) == pytest.approx(3.0)
    assert surface.at(2, 60) == pytest.approx(18.0)
    assert surface.at(4, 10) == pytest.approx(7.0)
    # Both ways: bilinear as in the last cell, here (2 r - 1) * c / 10.
    surface = Surface("t", [1, 2], [10, 20], [[1.0, 2.0], [3.0, 6.0]])
    assert surface.at(5, 70) == pytest.approx(9 * 7.0)


def test_a_smaller_slope_further_out_does_not_make_the_extrapolation_fall() -> None:
    # Row 2 grows by 0.01 per column, row 1 by 0.1: going on so, they would cross.
    surface = Surface("t", [1, 2], [10, 20], [[1.0, 2.0], [1.95, 2.05]])
    assert surface.at(1, 1000) <= surface.at(2, 1000)


@pytest.mark.parametrize(
    ("rows", "columns", "values", "sentence"),
    [
        ([1], [1, 2], [[1, 2]], "first axis has 1 points"),
        ([1, 2], [], [[], []], "second axis has 0 points"),
        ([2, 1], [1, 2], [[1, 2], [3, 4]], "has 1 after 2"),
        ([1, 1], [1, 2], [[1, 2], [3, 4]], "has 1 after 1"),
        ([0, 1], [1, 2], [[1, 2], [3, 4]], "has 0 after 0.0"),
        ([1, math.inf], [1, 2], [[1, 2], [3, 4]], "has inf after 1"),
        ([1, 2], [1, 2], [[1, 2]], "1 rows of seconds for 2"),
        ([1, 2], [1, 2], [[1, 2], [3]], "row 1 has 1 values for 2"),
        ([1, 2], [1, 2], [[1, 2], [3, math.nan]], "row 1, column 1 is nan"),
        ([1, 2], [1, 2], [[0, 2], [3, 4]], "row 0, column 0 is 0"),
        ([1, 2], [1, 2], [[1, 2], [3, 2.5]], "row 1, column 1 is 2.5, less than the 3"),
        ([1, 2], [1, 2], [[1, 2], [0.5, 4]], "row 1, column 0 is 0.5, less than the 1"),
    ],
)
def test_refuses(
    rows: list[float], columns: list[float], values: list[list[float]], sentence: str
) -> None:
    with pytest.raises(ProfileError, match=sentence):
        Surface("decode", rows, columns, values)
