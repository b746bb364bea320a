"""Requests by the beginning of their ids, as SGLang's aborts name them."""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import Any

from tokenflow_sgl.engine.sglang.request import Req


class Names:
    """Requests in the order of their ids: an abort finds those it names without looking at all.

    When a thousand readers leave at once, each of their aborts would compare its id with every
    paused stream's.
    """

    def __init__(self) -> None:
        self._keys: list[tuple[str, int]] = []
        self._of: dict[tuple[str, int], Any] = {}

    def add(self, request: Req) -> None:
        """Add a request; once more does nothing."""
        key = _key(request)
        if key not in self._of:
            insort(self._keys, key)
            self._of[key] = request

    def discard(self, request: Req) -> None:
        """Remove a request, if it is there."""
        key = _key(request)
        if self._of.pop(key, None) is not None:
            del self._keys[bisect_left(self._keys, key)]

    def beginning_with(self, prefix: str) -> list[Any]:
        """Requests whose id begins with `prefix`, in the order of their ids."""
        found = []
        for place in range(bisect_left(self._keys, (prefix, 0)), len(self._keys)):
            key = self._keys[place]
            if not key[0].startswith(prefix):
                break
            found.append(self._of[key])
        return found


def _key(request: Req) -> tuple[str, int]:
    return request.rid, id(request)
