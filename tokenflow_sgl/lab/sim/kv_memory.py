"""KV memory of device and host: what is held, what is cached, what was written back.

Running streams hold their KV. That of paused and of finished streams stays on the device as long
as there is room, as SGLang's prefix tree keeps it, and goes the longest unused first; what several
prompts start with is there once (see `prefixes`). With HiCache cached KV is copied to the
host, either as soon as it becomes cached (write-through; before the copy has ended it cannot be
evicted) or when it is evicted (write-back; what needs the room waits for the copy, unless it was
made ahead).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import numpy as np

from tokenflow_sgl.lab.sim.host_copies import HostCopies
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.simulated_streams import IntArray

Store = Callable[[int], float]
"""Copies so many tokens to the host and says when that has ended."""


class KVMemory:
    """Counts tokens of whole pages. A node is a stream's own stretch, by its index, or shared.

    Attributes:
        held: Tokens of running streams, those being prefilled, and the prefixes of both.
        evicted, lost: Tokens that left the device with a copy on the host, and without one.
        host: The copies.
        copies_ahead: Cached KV is copied before it is evicted, with write-back, too.
    """

    def __init__(
        self,
        device: int,
        host: int,
        prefixes: Prefixes,
        *,
        page: int = 1,
        write_back: bool = False,
        keep_copies: bool = True,
    ) -> None:
        self.device = device // page * page
        self.held = 0
        self.evicted = self.lost = 0
        self.copies_ahead = False
        self._prefixes = prefixes
        self._page = page
        self._write_back = write_back
        self._keep_copies = keep_copies
        self._resident: dict[int, int] = {}
        self._users: dict[int, int] = {}
        self._depth: dict[int, int] = {}  # nodes of its path that a stream keeps from eviction
        # In the order of their last use, and what continues a prefix before that prefix.
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._cached_sum = 0
        self._leaving: OrderedDict[int, float] = OrderedDict()  # until it may be evicted
        self._leaving_sum = 0
        self._running: set[int] = set()
        self._arrives: dict[int, float] = {}  # when a running stream's last copy is there
        self.host = HostCopies(
            host // page * page,
            len(prefixes.paths),
            page=page,
            write_back=write_back,
            on_device=self._on_device,
            in_use=self._in_use,
        )

    @property
    def free(self) -> int:
        """Tokens that can be allocated: empty, or cached by no stream that runs."""
        return self.device - self.held - self._leaving_sum

    def paged(self, tokens: int) -> int:
        """Tokens of the pages that hold so many."""
        return -(-tokens // self._page) * self._page

    def match(self, stream: int) -> tuple[int, int]:
        """Leading tokens of a stream that are on the device, and on device or host."""
        resident = reach = 0
        on_device = True
        for node in (*self._prefixes.paths[stream], stream):
            here = self._resident.get(node, 0) if on_device else 0
            there = max(here, self.host.of(node))
            resident += here
            reach += there
            on_device = on_device and here >= self._prefixes.tokens[node]
            if there < self._prefixes.tokens[node]:
                break
        return resident, reach

    def path(self, stream: int) -> tuple[Sequence[int], Sequence[int]]:
        """What a stream's prompt shares with others: the nodes, and the tokens of each."""
        nodes = self._prefixes.paths[stream]
        return nodes, [self._prefixes.tokens[node] for node in nodes]

    def there(self, node: int) -> int:
        """Leading tokens of a node that are on device or host."""
        return max(self._resident.get(node, 0), self.host.of(node))

    def evictable(self, stream: int) -> int:
        """Tokens on the device that a stream would find and that no stream holds."""
        found = 0
        for node in (*self._prefixes.paths[stream], stream):
            here = self._resident.get(node, 0)
            found += here if not self._users.get(node) else 0
            if here < self._prefixes.tokens[node]:
                break
        return found

    def allocate(self, tokens: int) -> int:
        """Running streams take `tokens`, which are free; cached ones make room.

        Returns how many of these must be copied to the host first.
        """
        self.held += tokens
        missing = self.held + self._leaving_sum + self._cached_sum - self.device
        unsaved = 0
        while missing > 0 and self._cached:
            node = next(iter(self._cached))
            gone = min(self._resident[node], missing)
            unsaved += self._evict(node, gone)
            missing -= gone
        return unsaved

    def give_back(self, tokens: int) -> None:
        """Running streams need `tokens` of theirs no more, and nothing is in them."""
        self.held -= tokens

    def take(self, stream: int, tokens: int) -> None:
        """A stream starts with `tokens` that are on the device: they may not be evicted now."""
        at = 0
        for depth, node in enumerate(self._prefixes.paths[stream]):
            if tokens > at:
                self._keep(stream, depth)
            at += self._prefixes.tokens[node]
        self._running.add(stream)
        self.host.moved(stream)
        if stream in self._resident:
            self._uncache(stream)
            own = self._resident.pop(stream)
            if tokens <= at:
                self.held -= own  # what came before it is gone: of no use

    def extend(self, stream: int, start: int, end: int) -> None:
        """A stream's tokens from `start` to `end`, allocated before, were computed or loaded."""
        at = 0
        for depth, node in enumerate(self._prefixes.paths[stream]):
            if end <= at:
                return
            self._keep(stream, depth)
            length = self._prefixes.tokens[node]
            # What a page has only a part of is found by no stream.
            first, last = (
                min(max(edge - at, 0), length) // self._page * self._page for edge in (start, end)
            )
            there = self._resident.get(node, 0)
            # Another stream may have computed the same meanwhile: one copy is enough.
            self.held -= max(min(there, last) - first, 0)
            self._resident[node] = max(there, last)
            self.host.moved(node)
            at += length

    def release(self, stream: int, tokens: int, store: Store, *, keep: bool = True) -> None:
        """A stream that ran with `tokens` stops; unless `keep`, its own ones are gone for good."""
        self._running.discard(stream)
        if not self._keep_copies:
            self.host.drop(stream)
        # Pages that are not full are of no use.
        full = tokens // self._page * self._page
        self.held -= self.paged(tokens) - full
        own = max(full - int(self._prefixes.shared[stream]), 0)
        idle = []
        if keep and own:
            idle.append(stream)
            self._resident[stream] = own
            if self.host.of(stream) > own:  # of what was paused a part had come back
                self.host.moved(stream)
        else:
            self.held -= own
            self.host.moved(stream)
        path = self._prefixes.paths[stream][: self._depth.pop(stream, 0)]
        for node in reversed(path):
            self._users[node] -= 1
            if not self._users[node]:
                del self._users[node]
                idle.append(node)
        ready = self._arrives.pop(stream, None)
        if self.host.size and (self.copies_ahead or not self._write_back):
            written = sum(self._write(node) for node in idle)
            if written:
                ready = store(written)
        for node in idle:
            tokens = self._resident[node]
            self.held -= tokens
            if ready is None:
                self._cached[node] = None
                self._cached_sum += tokens
            else:
                self._leaving[node] = ready
                self._leaving_sum += tokens

    def unwritten(self, rows: IntArray, tokens: IntArray) -> IntArray:
        """Tokens of running streams with `tokens` each, of whole pages without a copy."""
        if not self.host.size:
            return np.zeros(len(rows), dtype=np.int64)
        own = tokens // self._page * self._page - self._prefixes.shared[rows]
        return np.asarray(np.maximum(own - self.host.copied[rows], 0))

    def write(self, stream: int, tokens: int, store: Store) -> int:
        """Copy the next `tokens` of a running stream's own part to the host, if it has room.

        Returns how many are copied.
        """
        if not self.host.keep(stream, int(self.host.copied[stream]) + tokens):
            return 0
        self.arrives(stream, store(tokens))
        return tokens

    def arrives(self, stream: int, ready: float) -> None:
        """The last copy of a running stream has ended at `ready`."""
        self._arrives[stream] = ready

    def settle(self, now: float) -> None:
        """Copies that have ended by `now` make their tokens evictable."""
        while self._leaving:
            node, ready = next(iter(self._leaving.items()))
            if ready > now:
                return
            del self._leaving[node]
            tokens = self._resident[node]
            self._leaving_sum -= tokens
            self._cached[node] = None
            self._cached_sum += tokens

    def settles_at(self) -> float | None:
        """When the next copy ends; None: none is under way."""
        return next(iter(self._leaving.values()), None)

    def touch(self, stream: int) -> None:
        """What a stream has on device and host goes last when memory is needed."""
        for node in (stream, *reversed(self._prefixes.paths[stream])):
            self.host.touch(node)
            if node in self._cached:
                self._cached.move_to_end(node)

    def _keep(self, stream: int, depth: int) -> None:
        """The stream uses the node at this depth of its path, and those before it already."""
        if depth < self._depth.get(stream, 0):
            return
        self._depth[stream] = depth + 1
        node = self._prefixes.paths[stream][depth]
        if not self._users.get(node):
            self._uncache(node)
        self._users[node] = self._users.get(node, 0) + 1

    def _uncache(self, node: int) -> None:
        tokens = self._resident.get(node, 0)
        if node in self._cached:
            del self._cached[node]
            self._cached_sum -= tokens
        elif node in self._leaving:
            del self._leaving[node]
            self._leaving_sum -= tokens
        else:
            return
        self.held += tokens

    def _in_use(self, node: int) -> bool:
        return node in self._running or bool(self._users.get(node))

    def _on_device(self, node: int) -> int:
        running = node in self._running
        return self.host.of(node) if running else self._resident.get(node, 0)

    def _unwritten(self, node: int) -> int:
        if not self.host.size:
            return 0
        return max(self._resident[node] - self.host.of(node), 0)

    def _write(self, node: int) -> int:
        """The host has all of the node that the device has, if it has room; how much was new."""
        unwritten = self._unwritten(node)
        kept = self.host.keep(node, self.there(node))
        return unwritten if kept else 0

    def _evict(self, node: int, gone: int) -> int:
        """Take the last `gone` tokens of a cached node; returns how many had to be copied."""
        unsaved = 0
        if self._write_back:
            unsaved = self._write(node)
        tokens = self._resident[node]
        if self.host.of(node) >= tokens:
            self.evicted += gone
        else:
            self.lost += gone
        self._cached_sum -= gone
        self._resident[node] = tokens - gone
        if gone == tokens:
            del self._cached[node]
            del self._resident[node]
        self.host.moved(node)
        return unsaved
