"""Which copies into the staging cells go next: earliest deadline first.

Pages whose layers lie alike are one group. A group has one copy under way at most, for its next
layer on the host, and the next one begins when that layer is done (OrbitFlow section 3.3.1, as in
`placement.step_latency`). The link takes the group whose layer comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PageFetch:
    """Pages to copy from the host for a layer, of shape (pages,)."""

    layer: int
    pages: IntArray


class _Group:
    def __init__(self, layers: tuple[int, ...], pages: IntArray) -> None:
        self.layers = list(layers)  # those on the host that are not done
        self.pages = pages
        self.fetched = 0  # pages that were fetched for the first of them


class StagingQueue:
    """The copies of one step.

    Args:
        groups: Layers on the host, ascending and one at least, and the pages that have content.
    """

    def __init__(self, groups: Iterable[tuple[tuple[int, ...], IntArray]]) -> None:
        self._groups = [_Group(layers, pages) for layers, pages in groups if pages.size]

    def due(self, layer: int) -> list[PageFetch]:
        """What this layer needs and was not fetched yet; it has to go now."""
        return [
            self._fetch(group, group.pages.size)
            for group in self._groups
            if group.layers and group.layers[0] == layer and group.fetched < group.pages.size
        ]

    def ahead(self, most: int | None = None) -> list[PageFetch]:
        """What may go now for later layers, in the order of these.

        Args:
            most: Pages; None: all.
        """
        found = []
        waiting = [g for g in self._groups if g.layers and g.fetched < g.pages.size]
        for group in sorted(waiting, key=lambda each: each.layers[0]):
            if most is None:
                found.append(self._fetch(group, group.pages.size))
            elif most > 0:
                fetch = self._fetch(group, most)
                most -= fetch.pages.size
                found.append(fetch)
        return found

    def done(self, layer: int) -> None:
        """A layer is done: the staging cells that it read are free for the next."""
        for group in self._groups:
            if group.layers and group.layers[0] == layer:
                group.layers.pop(0)
                group.fetched = 0

    def _fetch(self, group: _Group, most: int) -> PageFetch:
        pages = group.pages[group.fetched : group.fetched + most]
        group.fetched += pages.size
        return PageFetch(group.layers[0], pages)


def groups(
    pages: IntArray, owners: IntArray, masks: Mapping[int, BoolArray]
) -> list[tuple[tuple[int, ...], IntArray]]:
    """Pages with content whose layers lie alike, and which layers of them are on the host.

    Args:
        pages: Of shape (n,).
        owners: The row of each, likewise.
        masks: By row: whether a layer lies on the host, of shape (layers,).
    """
    alike: dict[bytes, int] = {}
    group = np.zeros(owners.max(initial=0) + 1, dtype=np.int64)
    for row in np.flatnonzero(np.bincount(owners)).tolist():
        group[row] = alike.setdefault(masks[row].tobytes(), len(alike))
    found = []
    for key, number in alike.items():
        layers = np.flatnonzero(np.frombuffer(key, dtype=np.bool_))
        if layers.size:
            found.append((tuple(layers.tolist()), pages[group[owners] == number]))
    return found
