"""The memory of a rank: one arena on the device, one store on the host, and copies between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.engine.layerwise.copiers import Copier, Sides, TokenStretches
from tokenflow_sgl.engine.layerwise.layer_copies import Moment, Ticket


@dataclass(frozen=True, slots=True)
class CellShape:
    """What one cell holds: KV of a page in one layer.

    Attributes:
        tokens: Of a page.
        key, value: Shape of a token's key and value in one layer: heads and width.
        dtype: Of the tensors.
    """

    tokens: int
    key: tuple[int, int]
    value: tuple[int, int]
    dtype: torch.dtype


class KvOnBothSides:
    """Cells of all layers, and copies in streams of their own; see `LayerCopies`.

    Args:
        device_cells: Beside cell 0, which takes what is written for no page.
        host_cells: The same on the host.
        cell: What each holds.
        device: As torch names it.
        copier: Does the copies, and has the host's memory.
        poison: Make what a copy will bring unreadable until it is there, so that a reader that does
            not wait shows: for debugging.

    Attributes:
        key, value: The arena, of shape (tokens, heads, width).
    """

    def __init__(
        self,
        device_cells: int,
        host_cells: int,
        cell: CellShape,
        *,
        device: str,
        copier: Copier,
        poison: bool = False,
    ) -> None:
        self._size, self._copier, self._poison = cell.tokens, copier, poison

        def sides(shape: tuple[int, int]) -> Sides:
            arena = ((device_cells + 1) * cell.tokens, *shape)
            store = ((host_cells + 1) * cell.tokens, *shape)
            return torch.zeros(arena, dtype=cell.dtype, device=device), copier.room(
                store, cell.dtype
            )

        self._sides = [sides(cell.key), sides(cell.value)]
        self.key, self.value = (arena for arena, _ in self._sides)
        self._module: Any = torch.get_device_module(device)
        self._in, self._out = self._module.Stream(), self._module.Stream()

    def to_device(self, device: IntArray, host: IntArray, after: Ticket | None) -> Ticket:
        """Copy whole cells to the device."""
        if after is not None:
            self._in.wait_event(after.end)
        pieces = self._cells(device, host)
        if self._poison:
            for arena, _ in self._sides:
                arena[pieces.on_device] = torch.nan
        return self._submit(self._in, pieces, True)

    def to_host(self, device: IntArray, host: IntArray) -> Ticket:
        """Copy whole cells to the host."""
        return self._submit(self._out, self._cells(device, host), False)

    def tokens_to_host(self, device: IntArray, host: IntArray) -> Ticket:
        """Copy single tokens to the host."""
        return self._submit(self._out, TokenStretches(device, host, 1), False)

    def wait(self, ticket: Ticket) -> None:
        """What is computed from now on comes after this copy."""
        self._module.current_stream().wait_event(ticket.end)

    def moment(self) -> Moment:
        """When what has been computed so far is done."""
        return self._copier.moment(self._module.current_stream())

    def seconds(self, begin: Moment, end: Moment) -> float | None:
        """From one moment to a later one; torch's events on a CPU do not tell."""
        if not hasattr(end, "elapsed_time") or not end.query():
            return None
        return float(begin.elapsed_time(end)) / 1e3

    def _submit(self, stream: Any, pieces: TokenStretches, to_device: bool) -> Ticket:
        computed = self._module.current_stream().record_event()
        stream.wait_event(computed)
        begin = self._copier.moment(stream)
        with self._module.stream(stream):
            self._copier.copy(self._sides, pieces, to_device)
        return Ticket(begin, self._copier.moment(stream))

    def _cells(self, device: IntArray, host: IntArray) -> TokenStretches:
        return TokenStretches(device * self._size, host * self._size, self._size)
