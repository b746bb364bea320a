"""HiCache's host KV pool for an emulated device whose KV is real: copies take time and move it."""

from typing import Any

import torch

from tokenflow_sgl_emulator.host_pool import TorchCopies
from tokenflow_sgl_emulator.timed.timed_host_pool import TimedHostPool


class WordsHostPool(TimedHostPool, TorchCopies):
    """The bytes are there at once; whoever reads them waits until the link has brought them."""

    def load_to_device_per_layer(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        layer_id: int,
        io_backend: str,
        *,
        is_draft: bool = False,
    ) -> None:
        """Copy one layer of these token slots from host to device, and take its time."""
        slots = device_pool, host_indices, device_indices, layer_id, io_backend
        TorchCopies.load_to_device_per_layer(self, *slots, is_draft=is_draft)
        super().load_to_device_per_layer(*slots, is_draft=is_draft)

    def backup_from_device_all_layer(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        io_backend: str,
    ) -> None:
        """Copy all layers of these token slots from device to host, and take their time."""
        slots = device_pool, host_indices, device_indices, io_backend
        TorchCopies.backup_from_device_all_layer(self, *slots)
        super().backup_from_device_all_layer(*slots)
