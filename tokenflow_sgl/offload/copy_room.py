"""Room beside the copies on the host, so that what a copy grows by lies in one run with it.

After FastSwitch, section 3.3: beside a copy that is kept, memory is set aside for what the next
turn adds to it. A copy is written in increments, each of which continues another one: the tokens of
a stream that is under way, its last tokens when it is preempted, the next turn of a conversation.
So room is set aside behind an increment and taken by the one that continues it.

How much: as many tokens as a block group has. When: while a quarter of the pool stays free; a
single copy is also bound by what `BlockGroups` allows a group. Given back: when the increment
before it is freed (evicted, or flushed with all others), and piece by piece while no free run is as
large as what is asked for. What is set aside counts as free all the time, so nothing fails, and
nothing is evicted, that would not without it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.offload.block_groups import BlockGroups, Pages

AMPLE_SHARE = 4
"""Room is set aside while at least the AMPLE_SHARE-th part of the pool is free."""


class CopyRoom:
    """Which pages of the host are free, and what is set aside behind which increments.

    Args:
        pages: There are so many, with the numbers from 1.
        group: Pages that are set aside behind an increment, at most.
    """

    def __init__(self, pages: int, group: int) -> None:
        self._book = BlockGroups(pages, group)
        self._group = group
        self._ample = pages // AMPLE_SHARE
        # The last page of an increment, by its name, and the other way round. A name that is used
        # again is that of the later increment.
        self._last: dict[int, int] = {}
        self._name_at: dict[int, int] = {}
        self._ends_at: NDArray[np.bool_] = np.zeros(pages + 1, dtype=np.bool_)
        self._owner_at: dict[int, int] = {}  # of the room behind an increment's last page
        self._owners = 0
        self._unused: list[int] = []

    @property
    def available(self) -> int:
        """Pages that can be taken, those that are set aside among them."""
        return self._book.available

    def free_pages(self) -> Pages:
        """All pages that can be taken, in order."""
        return self._book.free_pages()

    def set_aside(self, name: int) -> int:
        """Pages that are set aside behind an increment."""
        owner = self._owner_at.get(self._last.get(name, 0))
        return 0 if owner is None else self._book.set_aside(owner)

    def continue_copy(self, name: int, before: int, pages: int) -> Pages:
        """Pages for an increment, behind the one before it where that is possible.

        Args:
            name: Of the increment.
            before: Name of the one that it continues; one that is not there is not looked for.
            pages: At least 1, at most `available`.

        Returns:
            The pages, shape (pages,), in as few runs as there are.
        """
        end = self._last.get(before)
        owner = None if end is None else self._owner_at.pop(end, None)
        if owner is None:
            owner = self._new_owner()
            if end is not None:
                self._book.begin(owner, end + 1)
        ample = self._book.available - pages >= self._ample
        self._book.expect(owner, self._group if ample else 0)
        found = self._book.grow(owner, pages)
        last = int(found[-1])
        self._last[name], self._name_at[last], self._ends_at[last] = last, name, True
        self._owner_at[last] = owner
        return found

    def take(self, pages: int) -> Pages:
        """Pages for what continues no copy; at most `available`."""
        return self._book.loose(pages)

    def give(self, pages: Pages) -> None:
        """These pages are free again, and so is what was set aside behind them.

        Raises:
            ValueError: One of them is not handed out, or is named twice.
        """
        self._book.give(pages)
        for end in pages[self._ends_at[pages]].tolist():
            self._ends_at[end] = False
            name = self._name_at.pop(end)
            if self._last.get(name) == end:
                del self._last[name]
            owner = self._owner_at.pop(end, None)
            if owner is not None:
                self._book.forget(owner)
                self._unused.append(owner)

    def _new_owner(self) -> int:
        if not self._unused:
            self._unused.append(self._owners)
            self._owners += 1
        return self._unused.pop()
