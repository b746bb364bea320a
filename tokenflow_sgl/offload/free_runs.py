"""Runs of consecutive free pages, found by size and merged when they touch.

Like a buddy allocator, sizes fall into classes of powers of two, and a run is split when less is
taken than it has. Unlike there, a run begins anywhere, so that a stream's pages can go on right
behind its last one, and two neighbours merge whatever their sizes are.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

STALE = 64
"""Entries of runs that are gone that a class may keep beside as many as it has runs."""


class FreeRuns:
    """The free pages as runs; every operation costs O(log n) in the number of runs.

    Which run serves depends on what was taken and given before, and on nothing else.

    Attributes:
        free: Pages in all runs.
    """

    def __init__(self) -> None:
        self.free = 0
        self._end: dict[int, int] = {}  # of a run, by its first page; behind its last page
        self._start: dict[int, int] = {}  # the same, the other way round
        # By size class: first pages, least on top, some of runs that are gone.
        self._heaps: list[list[int]] = []
        self._runs: list[int] = []  # how many there are in each class
        self._classes = 0  # bit k is set where class k has a run

    def __len__(self) -> int:
        return len(self._end)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The runs as (first page, pages), in order."""
        return ((start, self._end[start] - start) for start in sorted(self._end))

    @property
    def longest(self) -> int:
        """Pages of a run of the largest class, of which all are at least half as long; 0: none."""
        if not self._classes:
            return 0
        start = self._first(self._classes.bit_length() - 1)
        return self._end[start] - start

    def give(self, start: int, pages: int) -> None:
        """Pages that are not in a run yet become free, and merge with their neighbours."""
        self.free += pages
        end = start + pages
        if start in self._start:
            start = self._remove(self._start[start])
        if end in self._end:
            after = self._end[end]
            self._remove(end)
            end = after
        self._add(start, end)

    def take_at(self, start: int, most: int) -> int:
        """Take up to `most` pages of the run that begins at `start`; returns how many, or 0."""
        if most <= 0 or start not in self._end:
            return 0
        return self._take(start, most)

    def take(self, most: int) -> tuple[int, int]:
        """Take `most` pages in a run, or else as many as one of the largest class has.

        Returns:
            The first page and the pages; (0, 0) if none is free.
        """
        if most <= 0 or not self._classes:
            return 0, 0
        # Every run of such a class is large enough, and those of the least of them are split.
        fitting = self._classes >> (most - 1).bit_length()
        if fitting:
            number = (most - 1).bit_length() + (fitting & -fitting).bit_length() - 1
        else:
            number = self._classes.bit_length() - 1
        start = self._first(number)
        return start, self._take(start, most)

    def _take(self, start: int, most: int) -> int:
        end = self._end[start]
        self._remove(start)
        taken = min(most, end - start)
        if start + taken < end:
            self._add(start + taken, end)
        self.free -= taken
        return taken

    def _first(self, number: int) -> int:
        """The least first page of a class that has a run."""
        heap = self._heaps[number]
        while self._class_at(heap[0]) != number:
            heapq.heappop(heap)
        return heap[0]

    def _class_at(self, start: int) -> int:
        end = self._end.get(start)
        return -1 if end is None else (end - start).bit_length() - 1

    def _add(self, start: int, end: int) -> None:
        self._end[start], self._start[end] = end, start
        number = (end - start).bit_length() - 1
        while len(self._heaps) <= number:
            self._heaps.append([])
            self._runs.append(0)
        self._runs[number] += 1
        self._classes |= 1 << number
        heap = self._heaps[number]
        heapq.heappush(heap, start)
        if len(heap) > 2 * self._runs[number] + STALE:
            heap[:] = sorted({each for each in heap if self._class_at(each) == number})

    def _remove(self, start: int) -> int:
        """Take a run out of the books; returns its first page."""
        end = self._end.pop(start)
        del self._start[end]
        number = (end - start).bit_length() - 1
        self._runs[number] -= 1
        if not self._runs[number]:
            self._classes &= ~(1 << number)
            self._heaps[number].clear()
        return start
