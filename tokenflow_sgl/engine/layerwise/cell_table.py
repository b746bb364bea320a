"""The table of cells where attention reads it: the host's own one, or a copy on a GPU."""

from __future__ import annotations

import numpy as np
import torch

from tokenflow_sgl.engine.layerwise.page_places import PagePlaces


class CellTable:
    """`PagePlaces.table` where attention reads it.

    On the CPU it is the table itself. The host changes that while a GPU has still to compute steps
    that were submitted before. So a GPU has one of its own, as the table was when its step began.

    Args:
        places: Has the table.
        page: Tokens of a page.
        device: Of the attention, as torch names it.
        mirrored: There is a copy; None: not on the CPU.
    """

    def __init__(
        self, places: PagePlaces, page: int, device: str, *, mirrored: bool | None = None
    ) -> None:
        self._places, self._page, self._device = places, page, device
        self._pinned = torch.device(device).type == "cuda"
        self._mirrored = torch.device(device).type != "cpu" if mirrored is None else mirrored
        self._cells = torch.from_numpy(places.table)
        if self._mirrored:
            self._cells = torch.zeros(places.table.shape, dtype=torch.int32, device=device)

    def update(self) -> None:
        """A step begins: from now on with the places that pages have now.

        Pinned memory is torch's, which gives it to no one else before the copy has been done; so
        nothing is waited for.
        """
        pages = np.flatnonzero(self._places.changed)
        if not self._mirrored or not pages.size:
            return
        self._places.changed[pages] = False
        cells = torch.from_numpy(self._places.table[:, pages].astype(np.int32))
        self._cells.index_copy_(1, self._sent(torch.from_numpy(pages)), self._sent(cells))

    def where(self, layer: int, places: torch.Tensor) -> torch.Tensor:
        """Where a layer has tokens in the arena.

        Args:
            layer: Counted from 0.
            places: As SGLang counts them, page * page size + place; int64, of any shape.

        Returns:
            Cell * page size + place, int64, of the same shape.
        """
        pages, offsets = places // self._page, places % self._page
        return torch.add(offsets, self._cells[layer][pages], alpha=self._page)

    def _sent(self, made: torch.Tensor) -> torch.Tensor:
        if self._pinned:
            made = made.pin_memory()
        return made.to(self._device, non_blocking=True)
