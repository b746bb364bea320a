"""The memory of a rank: one arena on the device, one store on the host, and copies between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.engine.layerwise.layer_copies import Ticket

RunCopy = Callable[[Callable[[], None], int, bool], None]
"""Does a copy on the current stream: what it is, its tokens, and whether it goes to the device."""


def do(copy: Callable[[], None], _tokens: int, _to_device: bool) -> None:
    """The copy, as it is."""
    copy()


class KvOnBothSides:
    """Cells of all layers, and copies in streams of their own; see `LayerCopies`.

    Args:
        device_cells: Beside cell 0, which takes what is written for no page.
        host_cells: The same on the host.
        page_size: Tokens of a cell.
        key, value: Shape of a token's key and value in one layer: heads and width.
        dtype: Of the tensors.
        device: As torch names it.
        run: Does the copies; a platform may have its own way.
        poison: Make what a copy will bring unreadable until it is there, so that a reader that does
            not wait shows: for debugging.

    Attributes:
        key, value: The arena, of shape (tokens, heads, width).
    """

    def __init__(
        self,
        device_cells: int,
        host_cells: int,
        *,
        page_size: int,
        key: tuple[int, int],
        value: tuple[int, int],
        dtype: torch.dtype,
        device: str,
        run: RunCopy = do,
        poison: bool = False,
    ) -> None:
        self._size, self._run, self._poison = page_size, run, poison

        def room(cells: int, shape: tuple[int, int], where: str) -> torch.Tensor:
            return torch.zeros(((cells + 1) * page_size, *shape), dtype=dtype, device=where)

        self.key, self.value = room(device_cells, key, device), room(device_cells, value, device)
        self._sides = [
            (self.key, room(host_cells, key, "cpu")),
            (self.value, room(host_cells, value, "cpu")),
        ]
        self._module: Any = torch.get_device_module(device)
        self._in, self._out = self._module.Stream(), self._module.Stream()

    def to_device(self, device: IntArray, host: IntArray, after: Ticket | None) -> Ticket:
        """Copy whole cells to the device."""
        if after is not None:
            self._in.wait_event(after.end)
        to, source = self._tokens(device), self._tokens(host)
        if self._poison:
            for arena, _ in self._sides:
                arena[to] = torch.nan

        def load() -> None:
            for arena, store in self._sides:
                arena[to] = store[source].to(arena.device, non_blocking=True)

        return self._submit(self._in, load, to, True)

    def to_host(self, device: IntArray, host: IntArray) -> Ticket:
        """Copy whole cells to the host."""
        return self._store(self._tokens(device), self._tokens(host))

    def tokens_to_host(self, device: IntArray, host: IntArray) -> Ticket:
        """Copy single tokens to the host."""
        return self._store(torch.from_numpy(device), torch.from_numpy(host))

    def wait(self, ticket: Ticket) -> None:
        """What is computed from now on comes after this copy."""
        self._module.current_stream().wait_event(ticket.end)

    def moment(self) -> Any:
        """When what has been computed so far is done."""
        return self._module.current_stream().record_event()

    def seconds(self, begin: Any, end: Any) -> float | None:
        """From one moment to a later one; torch's events on a CPU do not tell."""
        if not hasattr(end, "elapsed_time") or not end.query():
            return None
        return float(begin.elapsed_time(end)) / 1e3

    def _store(self, source: torch.Tensor, to: torch.Tensor) -> Ticket:
        def store() -> None:
            for arena, kept in self._sides:
                kept[to] = arena[source].to("cpu", non_blocking=True)

        return self._submit(self._out, store, to, False)

    def _submit(
        self, stream: Any, copy: Callable[[], None], tokens: torch.Tensor, to_device: bool
    ) -> Ticket:
        computed = self._module.current_stream().record_event()
        stream.wait_event(computed)
        begin = stream.record_event()
        with self._module.stream(stream):
            self._run(copy, tokens.numel(), to_device)
        return Ticket(begin, stream.record_event())

    def _tokens(self, cells: IntArray) -> torch.Tensor:
        """All places of these cells."""
        return torch.from_numpy((cells[:, None] * self._size + np.arange(self._size)).reshape(-1))
