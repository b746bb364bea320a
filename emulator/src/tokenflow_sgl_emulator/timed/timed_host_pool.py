"""HiCache's host KV pool for the emulated device: copies take time and move nothing."""

from typing import Any

import torch
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from tokenflow_sgl_emulator.host_pool import PlainMemory
from tokenflow_sgl_emulator.timed.device import the_device


class TimedHostPool(PlainMemory, MHATokenToKVPoolHost):
    """SGLang's pool with the link's time in place of the CUDA copies.

    Args:
        buffer_info: Of the device's pool.
        host_to_device_ratio: Size by that of the device's pool.
        host_size: Gigabytes of the device's KV that it holds; 0: the ratio says it.
        page_size: Tokens of a page.
        *args: As SGLang's.
        **kwargs: As SGLang's.
    """

    def __init__(
        self,
        buffer_info: Any,
        host_to_device_ratio: float,
        host_size: float,
        page_size: int,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if host_size > 0:
            # SGLang would divide by the rows of the emulated model, which are next to nothing.
            tokens = int(host_size * 1e9 / the_device().profile.kv_bytes_per_token)
            # A page more, as SGLang has: it hands out all but one.
            kwargs["host_token_capacity"] = (tokens // page_size + 1) * page_size
        super().__init__(buffer_info, host_to_device_ratio, host_size, page_size, *args, **kwargs)

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
