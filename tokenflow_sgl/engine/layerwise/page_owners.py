"""Which stream each page is of; those that outlive their stream are the prefix tree's.

Streams that begin alike read the same pages. A page lies in one place in each layer, whoever reads
it, so one of them owns it, and where its layers lie is the owner's layout: the stream that had it
first. When that one has ended, or rests, the next that reads the page owns it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray
from tokenflow_sgl.engine.layerwise.cells import NONE

TREE = 0
"""In place of a stream's row: SGLang's prefix tree. SGLang gives row 0 to no stream."""


class PageOwners:
    """Owners of pages, which are numbered below `pages`.

    Attributes:
        row: Of the owner of each page, of shape (pages,): `TREE`, or `NONE` if the page is free.
    """

    def __init__(self, pages: int) -> None:
        self.row: IntArray = np.full(pages, NONE, dtype=np.int64)
        self._since: IntArray = np.zeros(pages, dtype=np.int64)  # when the tree got it
        self._turn = 0
        self._read: dict[int, IntArray] = {}  # by row

    def left(self, rows: Sequence[int]) -> None:
        """The streams of these rows have ended: what they leave is the tree's."""
        if rows:
            self._turn += 1
            pages = np.isin(self.row, rows)
            self.row[pages], self._since[pages] = TREE, self._turn
        for row in rows:
            self._read.pop(row, None)

    def read(self, row: int, pages: IntArray, resting: Collection[int]) -> IntArray:
        """A stream is in a step: what no other stream that runs owns becomes its own.

        Args:
            row: Of the stream.
            pages: That it reads, of shape (n,), each once.
            resting: Rows of streams that are in no step until they are resumed.

        Returns:
            Those that had another owner, of shape (k,).
        """
        self._read[row] = pages
        owners = self.row[pages]
        taken = (owners == TREE) | np.isin(owners, [*resting])
        self.row[pages[taken | (owners == NONE)]] = row
        found: IntArray = pages[taken]
        return found

    def freed(self, pages: IntArray) -> None:
        """SGLang has taken pages back, of shape (n,)."""
        self.row[pages] = NONE

    def count(self, pages: IntArray, rows: Sequence[int]) -> IntArray:
        """How many of these pages each of these streams owns, of shape (rows,)."""
        return _counted(self.row[pages], rows)

    def owned(self, rows: Sequence[int]) -> IntArray:
        """How many pages each of these streams owns, of shape (rows,)."""
        return _counted(self.row, rows)

    def shared(self, pages: IntArray, resting: Collection[int], row: int = TREE) -> int:
        """How many of these pages another stream that runs owns.

        Args:
            pages: Of shape (n,), each once.
            resting: As of `read`.
            row: Of the stream that asks; `TREE`: one that was in no step yet.
        """
        owners = self.row[pages]
        others: BoolArray = (owners > TREE) & np.isin(owners, [row, *resting], invert=True)
        return int(np.count_nonzero(others))

    def read_by(self, row: int) -> IntArray:
        """Pages that a stream read in its last step, of shape (n,); none: it was in no step yet."""
        return self._read.get(row, self.row[:0])

    def of_tree(self) -> IntArray:
        """Pages that belong to the prefix tree and to no stream, of shape (n,)."""
        found: IntArray = np.flatnonzero(self.row == TREE)
        return found

    def longest_first(self, pages: IntArray) -> IntArray:
        """Pages of the tree, those that it has had for the longest first; of shape (n,)."""
        found: IntArray = pages[np.argsort(self._since[pages], kind="stable")]
        return found


def _counted(owners: IntArray, rows: Sequence[int]) -> IntArray:
    """How often each row is among these owners, of shape (rows,)."""
    counts = np.bincount(owners - NONE, minlength=max(rows, default=0) + 1 - NONE)
    found: IntArray = counts[np.array(rows, dtype=np.int64) - NONE]
    return found
