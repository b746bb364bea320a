"""Requests for whose fetch the host had no memory: they are asked for again when it has some.

SGLang does so every eight passes, eight times, and never for the first one of the queue, which its
prefetches would hold up. A restoration computes the head meanwhile, so the first one gains most.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tokenflow_sgl.engine.sglang.request import Req
from tokenflow_sgl.engine.sglang.tree import Tree

MOST_TRIES = 8
"""More are not worth the passes for which a request waits for the storage's answer."""


@dataclass(slots=True)
class _Refused:
    """A request for whose fetch the host had no memory.

    request: SGLang's, which may be gone. end: tokens that are stored of it, from the beginning.
    tries: fetches that were refused. waiting: none is under way.
    """

    request: weakref.ref[Any]
    end: int = 0
    tries: int = 0
    waiting: bool = False


class RefusedFetches:
    """Waiting requests for whose fetch the host had no memory.

    Args:
        tree: SGLang's prefix tree.
        fetch_again: Begins a fetch for a request anew, of what is stored up to a token.
    """

    def __init__(self, tree: Tree, fetch_again: Callable[[Any, int], object]) -> None:
        self._tree = tree
        self._fetch_again = fetch_again
        self._of: dict[Any, _Refused] = {}  # by SGLang's handle
        self._looked = False

    def begin_pass(self) -> None:
        """Memory may have become free: the first one that admission looks at may have it."""
        self._looked = False

    def add(self, request: Req, end: int) -> None:
        """The host had no memory for any of its prefix, of which `end` tokens are stored."""
        handle = request.cache_request_handle
        # SGLang says nothing of a request that is aborted while it waits.
        gone = weakref.ref(request, lambda _: self._of.pop(handle, None))
        one = self._of.setdefault(handle, _Refused(gone))
        one.end, one.tries, one.waiting = end, one.tries + 1, one.tries < MOST_TRIES

    def begun(self, handle: Any) -> None:
        """A fetch for it is under way."""
        if handle in self._of:
            self._of[handle].waiting = False

    def forget(self, handle: Any) -> None:
        """Drop what is kept of a request that was admitted."""
        self._of.pop(handle, None)

    def again(self, handle: Any) -> bool:
        """Whether a fetch was begun anew for the waiting request of this handle.

        At most one in a pass: its memory is allocated later, and there may be none for another.
        """
        one = self._of.get(handle)
        request = one.request() if one is not None and one.waiting else None
        if one is None or request is None or self._looked:
            return False
        self._looked = True
        if not self._has_room():
            return False
        one.waiting = False
        self._fetch_again(request, one.end)
        return True

    def _has_room(self) -> bool:
        """Whether the host has memory for the shortest fetch; the same on all ranks."""
        least = int(self._tree.prefetch_threshold)
        free = int(self._tree.cache_controller.mem_pool_host.available_size())
        return free >= least or free + int(self._tree.evict_host(least - free)) >= least
