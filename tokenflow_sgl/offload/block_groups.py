"""Block groups: consecutive KV pages for each stream, so that its copies are few and large.

After FastSwitch, section 3.1 (Dynamic Block Group Manager): a stream gets a first group of about
1,000 tokens, of which it uses page after page; a group that is used up is followed by another one.
What of a group is not used yet is free for the others, too: while no free run is as large, the
largest rest of a group is split, and its owner keeps the first half. So a page that is asked for is
always there while any page is free.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokenflow_sgl.offload.free_runs import FreeRuns

GROUP_TOKENS = 1000
"""Tokens of a group (FastSwitch, section 3.1: its block groups begin with about as many)."""
SHARE = 4
"""A group sets aside at most the SHARE-th part of the pages that are in no group, or, if that is
more, half of its even share of all that are available: else groups would have single pages while
memory is short."""

Pages = NDArray[np.int64]
Owners = NDArray[np.int64]


class BlockGroups:
    """Which pages are free, and the rest of each owner's group.

    Args:
        pages: There are so many, with the numbers from 1: page 0 is no stream's.
        group: Pages of a group that are set aside for the tokens to come, at most.

    Attributes:
        available: Pages that can be taken: those in no group, and the rests of groups.
    """

    def __init__(self, pages: int, group: int) -> None:
        if pages < 1:
            raise ValueError(f"pages is {pages}; allowed is 1 or more")
        if group < 1:
            raise ValueError(f"group is {group}; allowed is 1 or more")
        self._group = group
        self._runs = FreeRuns()
        self._runs.give(1, pages)
        self._held = np.zeros(pages + 1, dtype=np.bool_)
        self._held[0] = True
        self.available = pages
        # Of each owner: the page that is next, and the end of its group. A closed group is empty,
        # and its next page is still where the owner's last one was followed.
        self._next = np.zeros(0, dtype=np.int64)
        self._end = np.zeros(0, dtype=np.int64)
        self._ahead = np.zeros(0, dtype=np.int64)
        self._has_group = np.zeros(0, dtype=np.bool_)
        self._groups = 0

    def free_pages(self) -> Pages:
        """All pages that can be taken, in order."""
        return np.flatnonzero(~self._held)

    def set_aside(self, owner: int) -> int:
        """Pages that are left of an owner's group."""
        return int(self._end[owner] - self._next[owner]) if owner < len(self._end) else 0

    def expect(self, owner: int, likely: int, certain: int = 0) -> None:
        """What an owner will want beyond the pages that it asks for next.

        Args:
            owner: Of the group.
            likely: Pages of tokens to come; at most a group's are set aside for them.
            certain: Pages of a prompt that is computed in chunks, behind the next one.
        """
        self._know(owner)
        self._ahead[owner] = certain + min(max(likely, 0), self._group)

    def begin(self, owner: int, page: int) -> None:
        """An owner without a group begins its next one with this page, if that is free then."""
        self._know(owner)
        self._next[owner] = self._end[owner] = page

    def grow(self, owner: int, pages: int) -> Pages:
        """The owner's next pages, in as few runs as there are; at most `available`."""
        self._know(owner)
        self._charge(pages)
        found: list[Pages] = []
        while pages > 0:
            first = int(self._next[owner])
            taken = min(pages, int(self._end[owner]) - first)
            if not taken:
                self._open(owner, pages)
                continue
            found.append(np.arange(first, first + taken))
            self._next[owner] += taken
            pages -= taken
        return self._hand_out(found)

    def step(self, owners: Owners) -> Pages:
        """One more page for each of these different owners; at most `available`."""
        if len(owners):
            self._know(int(owners.max()))
        self._charge(len(owners))
        pages = self._next[owners]
        ready = pages < self._end[owners]
        if ready.all():
            self._next[owners] += 1
        else:
            # Before the others: what these take now must not be split off meanwhile.
            self._next[owners[ready]] += 1
            for index in np.flatnonzero(~ready).tolist():
                owner = int(owners[index])
                self._open(owner, 1)
                pages[index] = self._next[owner]
                self._next[owner] += 1
        self._held[pages] = True
        return pages

    def loose(self, pages: int) -> Pages:
        """Pages for no owner, in as few runs as there are; at most `available`."""
        self._charge(pages)
        found: list[Pages] = []
        while pages > 0:
            self._split(min(pages, self._group))
            start, taken = self._runs.take(pages)
            found.append(np.arange(start, start + taken))
            pages -= taken
        return self._hand_out(found)

    def give(self, pages: Pages) -> None:
        """Take pages back that are free again, in any order.

        Raises:
            ValueError: One of them is not handed out, or is named twice.
        """
        if not len(pages):
            return
        ordered = np.sort(pages)
        gaps = np.diff(ordered)
        inside = ordered[0] > 0 and ordered[-1] < len(self._held)
        if not (inside and (gaps > 0).all() and self._held[ordered].all()):
            raise ValueError(f"pages {_some(ordered)} are freed; allowed are pages in use, once")
        self._held[ordered] = False
        self.available += len(ordered)
        starts = np.flatnonzero(np.concatenate(([True], gaps > 1)))
        lengths = np.diff(np.append(starts, len(ordered)))
        for start, length in zip(ordered[starts].tolist(), lengths.tolist(), strict=True):
            self._runs.give(start, length)

    def close(self, owner: int) -> None:
        """What is left of an owner's group is in no group any more; it may go on there later."""
        left = self.set_aside(owner)
        if owner < len(self._has_group) and self._has_group[owner]:
            self._has_group[owner] = False
            self._groups -= 1
        if left:
            self._runs.give(int(self._next[owner]), left)
            self._end[owner] = self._next[owner]

    def forget(self, owner: int) -> None:
        """Close an owner's groups, as `close`; its number may be another owner's from now on."""
        self.close(owner)
        if owner < len(self._next):
            self._next[owner] = self._end[owner] = 0
            self._ahead[owner] = self._group

    def _charge(self, pages: int) -> None:
        if pages > self.available:
            raise ValueError(f"{pages} pages are asked for; allowed are the {self.available} free")
        self.available -= pages

    def _open(self, owner: int, pages: int) -> None:
        """A group for an owner that has used its own up: right behind it, or elsewhere."""
        if not self._has_group[owner]:
            self._has_group[owner] = True
            self._groups += 1
        spare = max(self._runs.free - pages, 0) // SHARE
        even = self.available // (2 * self._groups)
        want = pages + min(int(self._ahead[owner]), max(spare, even))
        start = int(self._next[owner])
        taken = self._runs.take_at(start, want)
        if not taken:
            self._split(want)
            start, taken = self._runs.take(want)
        self._next[owner], self._end[owner] = start, start + taken

    def _split(self, want: int) -> None:
        """Put the second half of the largest rest of a group into no group, if that is needed.

        It is while there is no run of `want` pages, and none as large as that half.
        """
        longest = self._runs.longest
        if longest >= want:
            return
        left = self._end - self._next
        largest = int(left.argmax()) if len(left) else -1
        half = (int(left[largest]) + 1) // 2 if largest >= 0 else 0
        if half <= longest:
            return
        self._end[largest] -= half
        self._runs.give(int(self._end[largest]), half)

    def _know(self, owner: int) -> None:
        missing = owner + 1 - len(self._next)
        if missing > 0:
            more = np.zeros(max(missing, len(self._next)), dtype=np.int64)
            self._next = np.append(self._next, more)
            self._end = np.append(self._end, more)
            self._ahead = np.append(self._ahead, more + self._group)
            self._has_group = np.append(self._has_group, more.astype(np.bool_))

    def _hand_out(self, found: list[Pages]) -> Pages:
        if not found:
            return np.zeros(0, dtype=np.int64)
        pages = found[0] if len(found) == 1 else np.concatenate(found)
        self._held[pages] = True
        return pages


def _some(pages: Pages) -> str:
    shown = ", ".join(str(page) for page in pages[:8].tolist())
    return f"{shown}, ..." if len(pages) > 8 else shown
