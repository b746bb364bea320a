"""Numbered cells of one memory, each as large as one page of one layer: which of them are free."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import IntArray

NONE = -1
"""In place of a cell: there is none."""


class CellError(RuntimeError):
    """More cells were asked for than are free, or one was given back that is not in use."""


class Cells:
    """Free and used cells, numbered from 1: number 0 is no page's, and is left to the caller.

    Args:
        name: Of the memory, for errors.
        count: Cells, >= 0.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self.count = count
        self._stack = np.arange(count, 0, -1, dtype=np.int64)  # the free ones are its first `free`
        self._used = np.zeros(count + 1, dtype=np.bool_)
        self.free = count
        """Cells that can be taken."""

    @property
    def used(self) -> int:
        """Number of cells that are taken."""
        return self.count - self.free

    def take(self, number: int) -> IntArray:
        """Take this many cells; their numbers, of shape (number,).

        Raises:
            CellError: Fewer are free; then none is taken.
        """
        if number > self.free:
            raise CellError(f"{number} cells of the {self._name} are asked for, {self.free} free")
        self.free -= number
        taken: IntArray = self._stack[self.free : self.free + number].copy()
        self._used[taken] = True
        return taken

    def give(self, cells: IntArray) -> None:
        """Cells that are not in use any more, of shape (number,), each once.

        Raises:
            CellError: One of them was free, or is given twice; then none is taken back.
        """
        known = cells[(cells > 0) & (cells <= self.count)]
        if known.size < cells.size or not self._used[known].all():
            raise CellError(f"cells of the {self._name} are given back that are not in use")
        if np.unique(cells).size < cells.size:
            raise CellError(f"a cell of the {self._name} is given back twice")
        self._used[cells] = False
        self._stack[self.free : self.free + cells.size] = cells
        self.free += cells.size

    def in_use(self) -> IntArray:
        """Numbers of the cells that are taken, ascending."""
        found: IntArray = np.flatnonzero(self._used)
        return found
