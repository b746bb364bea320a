"""HiCache's host KV pool for the emulated device: copies take time and move nothing."""

from typing import Any

import torch
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from tokenflow_sgl_emulator.host_pool import PlainMemory
from tokenflow_sgl_emulator.timed.device import the_device


class TimedHostPool(PlainMemory, MHATokenToKVPoolHost):
    """SGLang's pool with the link's time in place of the CUDA copies."""

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
        """Take the time of one layer of these token slots, from host to device."""
        slots = host_indices, device_indices
        the_device().load_layer(slots, layer_id, self.page_size, io_backend, self.layout)

    def backup_from_device_all_layer(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        io_backend: str,
    ) -> None:
        """Take the time of all layers of these token slots, from device to host."""
        slots = host_indices, device_indices
        the_device().store(slots, self.page_size, io_backend, self.layout)
