"""Who copies KV between device and host, and what the host's memory is for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from tokenflow_sgl.contract import IntArray
from tokenflow_sgl.engine.layerwise.layer_copies import Moment

Sides = tuple[torch.Tensor, torch.Tensor]
"""Keys or values of the device and of the host, each of shape (tokens, heads, width)."""
RunCopy = Callable[[Callable[[], None], int, bool], None]
"""Does a copy on the current stream: what it is, its tokens, and whether it goes to the device."""


def do(copy: Callable[[], None], _tokens: int, _to_device: bool) -> None:
    """The copy, as it is."""
    copy()


@dataclass(frozen=True, slots=True, eq=False)
class TokenStretches:
    """Stretches of tokens that lie on both sides.

    Attributes:
        device, host: The first token of each, of shape (pieces,).
        length: Tokens of each.
    """

    device: IntArray
    host: IntArray
    length: int

    @property
    def on_device(self) -> torch.Tensor:
        """Places of all of these tokens on the device, of shape (tokens,)."""
        return self._all(self.device)

    @property
    def on_host(self) -> torch.Tensor:
        """Places of all of these tokens on the host, of shape (tokens,)."""
        return self._all(self.host)

    def _all(self, first: IntArray) -> torch.Tensor:
        return torch.from_numpy((first[:, None] + np.arange(self.length)).reshape(-1))


class Copier(Protocol):
    """The way of one kind of device."""

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host, which a copy may be under way from and to."""
        ...

    def copy(self, sides: list[Sides], pieces: TokenStretches, to_device: bool) -> None:
        """Copy keys and values on the current stream."""
        ...

    def moment(self, stream: Any) -> Moment:
        """When what this stream has been given so far is done."""
        ...


class TorchCopier:
    """Copies by torch's own indexing, for devices that are emulated.

    Args:
        run: Does the copies; a platform may have its own way.
    """

    def __init__(self, run: RunCopy = do) -> None:
        self._run = run

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Host memory for a store, zeros of this shape."""
        return torch.zeros(shape, dtype=dtype)

    def copy(self, sides: list[Sides], pieces: TokenStretches, to_device: bool) -> None:
        """All tokens of all pieces."""
        here, there = pieces.on_device, pieces.on_host

        def load() -> None:
            for arena, store in sides:
                arena[here] = store[there]

        def store() -> None:
            for arena, kept in sides:
                kept[there] = arena[here]

        self._run(load if to_device else store, here.numel(), to_device)

    def moment(self, stream: Any) -> Moment:
        """An event at the end of what the stream has queued so far."""
        return stream.record_event()
