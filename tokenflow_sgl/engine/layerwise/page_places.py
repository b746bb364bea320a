"""Where each page's KV of each layer lies: in a cell of the device, or in one of the host.

SGLang hands out pages that mean all layers at once, its logical pages. Here each of them has a cell
of its own in every layer: on the device, or on the host. A page with a layer on the host has one
more cell of the device while it is in a step: its staging cell, into which its layers on the host
come one after the other (OrbitFlow, PVLDB 19(1), section 3.3.1; one buffer for each stream).

Pure accounting: nothing is copied here. What has to be copied is returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import BoolArray, IntArray
from tokenflow_sgl.engine.layerwise.cells import NONE, CellError, Cells


@dataclass(frozen=True, slots=True, eq=False)
class CellPairs:
    """Pages of one layer each to copy between device and host; arrays of shape (copies,)."""

    device: IntArray
    host: IntArray

    def __len__(self) -> int:
        return int(self.device.size)


class PagePlaces:
    """The places of all pages.

    Args:
        layers: Of the model, >= 1.
        pages: Logical pages are numbered below this.
        device: Cells of the device.
        host: Cells of the host.

    Attributes:
        table: Cell of the device where a layer reads and writes a page, of shape (layers, pages):
            its own one, or the staging cell; 0, which is no page's: the layer lies on the host, and
            the page is not staged. It is changed in place.
        changed: Pages whose cells in `table` may have changed since this was last set to false, of
            shape (pages,).
        alive: Pages that have places, likewise.
    """

    def __init__(self, layers: int, pages: int, device: int, host: int) -> None:
        self.layers = layers
        self.device = Cells("device", device)
        self.host = Cells("host", host)
        self.table: IntArray = np.zeros((layers, pages), dtype=np.int64)
        self.changed: BoolArray = np.zeros(pages, dtype=np.bool_)
        self.alive: BoolArray = np.zeros(pages, dtype=np.bool_)
        self._own: IntArray = np.full((layers, pages), NONE, dtype=np.int64)
        self._host: IntArray = np.full((layers, pages), NONE, dtype=np.int64)
        self._staging: IntArray = np.full(pages, NONE, dtype=np.int64)
        self._away: IntArray = np.zeros(pages, dtype=np.int64)  # layers of a page on the host

    def add(self, pages: IntArray, offloaded: BoolArray) -> None:
        """Give places to new pages, which have no content yet.

        Args:
            pages: Of shape (n,), none of them alive, each once.
            offloaded: Whether a layer lies on the host, of shape (layers, n).

        Raises:
            CellError: The cells are not there; then nothing is changed.
            ValueError: A page is alive.
        """
        if self.alive[pages].any():
            raise ValueError(f"page {int(pages[self.alive[pages]][0])} is added twice")
        stays = np.logical_not(offloaded)
        self._check(self.device, int(stays.sum()))
        self._check(self.host, int(offloaded.sum()))
        self._put(self._own, pages, stays, self.device)
        self._put(self._host, pages, offloaded, self.host)
        self.alive[pages] = True
        self._away[pages] = offloaded.sum(axis=0)
        self._set_table(pages)

    def remove(self, pages: IntArray) -> None:
        """Pages that end; those that are not alive are passed over."""
        pages = np.unique(pages[self.alive[pages]])
        self.unstage(pages)
        for cells, memory in ((self._own, self.device), (self._host, self.host)):
            held = cells[:, pages]
            memory.give(held[held != NONE])
            cells[:, pages] = NONE
        self.alive[pages] = False
        self._away[pages] = 0
        self._set_table(pages)

    def evict(self, pages: IntArray, offloaded: BoolArray) -> CellPairs:
        """Give up the device's cells of layers that are to lie on the host, and lie on the device.

        The cells that are given up may be used again when the copies from them have ended.

        Args:
            pages: Of shape (n,), alive, each once; none of them staged.
            offloaded: As it is to be, of shape (layers, n).

        Returns:
            What has to be copied to the host.

        Raises:
            CellError: The host has too few cells; then nothing is changed.
        """
        leaves = offloaded & (self._own[:, pages] != NONE)
        return self._exchange(pages, leaves, self._own, self.device, self._host, self.host)

    def load(self, pages: IntArray, offloaded: BoolArray) -> CellPairs:
        """Take cells of the device for layers that are to lie there, and lie on the host.

        Arguments as of `evict`.

        Returns:
            What has to be copied to the device. The host's cells are free, and may be used again
            when the copies have ended.

        Raises:
            CellError: The device has too few cells; then nothing is changed.
        """
        comes = np.logical_not(offloaded) & (self._host[:, pages] != NONE)
        found = self._exchange(pages, comes, self._host, self.host, self._own, self.device)
        return CellPairs(found.host, found.device)

    def stage(self, pages: IntArray) -> IntArray:
        """Give each page that has a layer on the host a staging cell, if it has none.

        Args:
            pages: Of shape (n,), alive, each once.

        Returns:
            The new cells.

        Raises:
            CellError: The device has too few cells; then nothing is changed.
        """
        staged = pages[(self._away[pages] > 0) & (self._staging[pages] == NONE)]
        cells = self.device.take(int(staged.size))
        self._staging[staged] = cells
        self._set_table(staged)
        return cells

    def unstage(self, pages: IntArray) -> None:
        """Free the staging cells of these pages."""
        staged = pages[self._staging[pages] != NONE]
        self.device.give(self._staging[staged])
        self._staging[staged] = NONE
        self._set_table(staged)

    def staged(self) -> IntArray:
        """Pages that have a staging cell."""
        found: IntArray = np.flatnonzero(self._staging != NONE)
        return found

    def on_host(self, layer: int, pages: IntArray) -> BoolArray:
        """Whether the KV of a layer lies on the host, of shape (n,)."""
        found: BoolArray = self._host[layer, pages] != NONE
        return found

    def host_cells(self, layer: int, pages: IntArray) -> IntArray:
        """The cells of pages of which this layer lies on the host, of shape (n,)."""
        found: IntArray = self._host[layer, pages]
        return found

    @property
    def host_share(self) -> float:
        """Share of pages' cells that lies on the host, staging cells apart; NaN: there is none."""
        every = self.layers * int(np.count_nonzero(self.alive))
        return self.host.used / every if every else float("nan")

    def on_device(self, pages: IntArray) -> IntArray:
        """In how many layers each of these pages, all alive, lies on the device; of shape (n,)."""
        found: IntArray = self.layers - self._away[pages]
        return found

    def audit(self) -> str | None:
        """What is wrong with the accounting; None: every cell is in one hand."""
        for name, memory, held in (
            ("device", self.device, (self._own, self._staging)),
            ("host", self.host, (self._host,)),
        ):
            hands = np.sort(np.concatenate([cells[cells != NONE] for cells in held]))
            if not np.array_equal(hands, memory.in_use()):
                return f"the pages have {hands.size} cells of the {name}, {memory.used} are in use"
        both = (self._own != NONE).astype(np.int64) + (self._host != NONE)
        if not np.array_equal(both, np.broadcast_to(self.alive.astype(np.int64), both.shape)):
            return "a page has a layer in two places, or in none"
        return None

    @staticmethod
    def _check(memory: Cells, number: int) -> None:
        if number > memory.free:
            raise CellError(f"{number} cells are asked for, {memory.free} are free")

    @staticmethod
    def _put(cells: IntArray, pages: IntArray, where: BoolArray, memory: Cells) -> None:
        found = cells[:, pages]
        found[where] = memory.take(int(where.sum()))
        cells[:, pages] = found

    def _exchange(
        self,
        pages: IntArray,
        which: BoolArray,
        old: IntArray,
        gives: Cells,
        new: IntArray,
        takes: Cells,
    ) -> CellPairs:
        """Move pages of layers from one memory to the other: the old cells, and the new ones."""
        left, came = old[:, pages], new[:, pages]
        before, after = left[which], takes.take(int(which.sum()))
        gives.give(before)
        left[which], came[which] = NONE, after
        old[:, pages], new[:, pages] = left, came
        self._away[pages] = (self._host[:, pages] != NONE).sum(axis=0)
        self._set_table(pages)
        return CellPairs(before, after)

    def _set_table(self, pages: IntArray) -> None:
        own, staging = self._own[:, pages], np.maximum(self._staging[pages], 0)
        on_host = self._host[:, pages] != NONE
        self.table[:, pages] = np.where(on_host, staging, np.maximum(own, 0))
        self.changed[pages] = True
