"""What the simulated host has copies of, and which of them make room for others.

A host that is full drops what is on the device no more, the longest unused first. With
write-through it keeps the copy of what is on the device, as SGLang does. Where all of the host is
such copies, nothing more is copied, and what the device evicts without a copy is lost. With
write-back it first drops copies of what is on the device as well: of what streams there use before
what may be evicted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from itertools import chain

import numpy as np

from tokenflow_sgl.lab.sim.simulated_streams import IntArray


class HostCopies:
    """Copies of nodes (see `prefixes`), in tokens of whole pages.

    Args:
        size: Tokens of the host pool; 0: there is none.
        streams: How many; nodes below that are the streams' own stretches.
        page: Tokens of a page.
        write_back: A copy of what is on the device again may be dropped, too.
        on_device: Leading tokens of a node that the device has.
        in_use: Whether a running stream keeps a node there.

    Attributes:
        size: As above.
        copied: Tokens of each stream's own stretch that have a copy.
        backup: Is told of a node, and how many tokens of it the host has; None: nothing is.
    """

    def __init__(
        self,
        size: int,
        streams: int,
        *,
        page: int,
        write_back: bool,
        on_device: Callable[[int], int],
        in_use: Callable[[int], bool],
    ) -> None:
        self.size = size
        self.copied: IntArray = np.zeros(streams, dtype=np.int64)
        self.backup: Callable[[int, int], None] | None = None
        self._page = page
        self._write_back = write_back
        self._on_device, self._in_use = on_device, in_use
        self._tokens: OrderedDict[int, int] = OrderedDict()
        self._sum = 0
        self._unused: OrderedDict[int, None] = OrderedDict()
        self._twice: OrderedDict[int, None] = OrderedDict()  # all of it on the device, too

    @property
    def used(self) -> int:
        """Tokens that have a copy, or room set aside for one."""
        return self._sum

    def of(self, node: int) -> int:
        """Leading tokens of a node that have a copy."""
        return self._tokens.get(node, 0)

    def keep(self, node: int, tokens: int) -> bool:
        """Have so many tokens of a node, the last one used, if others make room."""
        new = tokens - self.of(node)
        if not self._makes_room(new, node):
            return False
        if self.backup is not None:
            self.backup(node, tokens)
        self._tokens.pop(node, None)
        self._tokens[node] = tokens
        self._sum += new
        self._copied(node, tokens)
        self.moved(node)
        return True

    def reserve(self, tokens: int) -> int:
        """Set room aside for at most so many tokens, whole pages; how many it is."""
        self._makes_room(tokens)
        room = min(max(self.size - self._sum, 0), tokens) // self._page * self._page
        self._sum += room
        return room

    def free(self, tokens: int) -> None:
        """Give back tokens that were set aside and are not needed any more."""
        self._sum -= tokens

    def drop(self, node: int) -> None:
        """The copy of a node, if there is one, is gone."""
        self._sum -= self._tokens.pop(node, 0)
        self._unused.pop(node, None)
        self._twice.pop(node, None)
        self._copied(node, 0)

    def moved(self, node: int) -> None:
        """What the device has of a node has changed: what it has no more may be dropped."""
        self._unused.pop(node, None)
        self._twice.pop(node, None)
        if self.of(node) > self._on_device(node):
            self._unused[node] = None
        elif self._write_back and node in self._tokens:
            self._twice[node] = None

    def touch(self, node: int) -> None:
        """A node's copy is the last one that is dropped."""
        for order in (self._unused, self._tokens, self._twice):
            if node in order:
                order.move_to_end(node)

    def _makes_room(self, new: int, node: int | None = None) -> bool:
        """Drop copies for so many tokens more, but not a node's own; whether there is room now."""
        while self._sum + new > self.size:
            others = (each for each in chain(self._twice, self._unused) if each != node)
            used = (each for each in self._twice if each != node and self._in_use(each))
            oldest = next(used, None)
            oldest = next(others, None) if oldest is None else oldest
            if oldest is None:
                return False
            self._shrink(oldest)
        return True

    def _shrink(self, node: int) -> None:
        kept = 0 if self._write_back else self._on_device(node)
        if not kept:
            self.drop(node)
            return
        self._sum -= self._tokens[node] - kept
        self._tokens[node] = kept
        self._unused.pop(node)
        self._copied(node, kept)

    def _copied(self, node: int, tokens: int) -> None:
        if node < len(self.copied):
            self.copied[node] = tokens
