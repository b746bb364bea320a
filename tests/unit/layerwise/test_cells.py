"""Cells are taken and given back once."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.engine.layerwise.cells import CellError, Cells


def test_all_cells_can_be_taken_each_once_and_none_is_number_0() -> None:
    cells = Cells("device", 5)
    first, rest = cells.take(2), cells.take(3)
    assert sorted([*first, *rest]) == [1, 2, 3, 4, 5]
    assert (cells.free, cells.used) == (0, 5)
    cells.give(first)
    assert cells.free == 2
    assert cells.in_use().tolist() == sorted(rest)


def test_what_is_not_there_is_not_taken() -> None:
    cells = Cells("device", 5)
    with pytest.raises(CellError, match="6 cells of the device are asked for, 5 free"):
        cells.take(6)
    assert cells.free == 5


@pytest.mark.parametrize("wrong", [[4], [0], [6], [-1]])
def test_what_is_not_in_use_is_not_taken_back(wrong) -> None:
    cells = Cells("host", 5)
    taken = cells.take(3)
    assert 4 not in taken
    with pytest.raises(CellError, match="not in use"):
        cells.give(np.array([taken[0], *wrong]))
    assert cells.used == 3


def test_a_cell_is_not_taken_back_twice() -> None:
    cells = Cells("host", 5)
    taken = cells.take(1)
    with pytest.raises(CellError, match="twice"):
        cells.give(np.repeat(taken, 2))
    cells.give(taken)
    with pytest.raises(CellError, match="not in use"):
        cells.give(taken)
