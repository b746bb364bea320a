"""Copies of KV on an NVIDIA GPU: by its copy engine, from and to pinned memory of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tokenflow_sgl.engine.layerwise.batched_copies import copy_batch, merged
from tokenflow_sgl.engine.layerwise.copiers import Sides, TokenStretches
from tokenflow_sgl.engine.layerwise.layer_copies import Moment


class CudaCopier:
    """One call for all pieces of a copy; see `Copier`."""

    def room(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Pinned memory, of any content.

        Memory that torch pins itself is a power of two large: up to twice as much as is asked for.

        Raises:
            RuntimeError: The host does not have it, or does not pin it.
        """
        made = torch.empty(shape, dtype=dtype)
        # One registration: a piece that crossed from one into another could not be copied.
        error = int(torch.cuda.cudart().cudaHostRegister(made.data_ptr(), made.nbytes, 0))
        if error:
            raise RuntimeError(
                f"--tokenflow-layerwise: {made.nbytes / 2**30:.1f} GiB of host memory could not be "
                f"pinned (CUDA error {error}): the host has too little, or its limit of locked "
                "memory is lower; start with less --tokenflow-layerwise-ratio."
            )
        return made

    def copy(self, sides: list[Sides], pieces: TokenStretches, to_device: bool) -> None:
        """Copy stretches of keys and values between device and host, in one batch."""
        if not pieces.device.size:
            return
        device, host, lengths = merged(pieces.device, pieces.host, pieces.length)
        here, there, sizes = [], [], []
        for arena, store in sides:
            token = arena[0].nbytes
            here.append(arena.data_ptr() + device * token)
            there.append(store.data_ptr() + host * token)
            sizes.append(lengths * token)
        targets, sources = (here, there) if to_device else (there, here)
        copy_batch(
            np.concatenate(targets).tolist(),
            np.concatenate(sources).tolist(),
            np.concatenate(sizes).tolist(),
            torch.cuda.current_stream().cuda_stream,
        )

    def moment(self, stream: Any) -> Moment:
        """An event that knows the time: torch's are made without."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream)
        return event
