"""HiCache's host KV pool with torch copies, for a platform whose "device" memory is RAM too.

SGLang's own pool pins its memory and copies with CUDA kernels. This one does neither, and leaves
everything else (sizes, layouts, slot bookkeeping, storage pages) to SGLang. HiCache moves whole
pages, so every layout is seen as ``[page, slot, head, dim]`` and a copy is one indexed assignment
per layer and per K or V.
"""

from typing import Any

import torch
from sglang.srt.mem_cache.pool_host.mha import (
    AsymmetricMHATokenToKVPoolHost,
    MHATokenToKVPoolHost,
)

from tokenflow_sgl_emulator.late_copies import copy


class PlainMemory:
    """The pool's memory, to be mixed into one of SGLang's pools."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["pin_memory"] = False  # pinning is cudaHostRegister
        super().__init__(*args, **kwargs)


class TorchCopies(PlainMemory):
    """The transfers between device pool and host pool, to be mixed into one of SGLang's pools."""

    layout: str
    page_size: int
    layer_num: int
    target_layer_num: int
    k_buffer: torch.Tensor
    v_buffer: torch.Tensor
    device_k_buffers: tuple[torch.Tensor, ...]
    device_v_buffers: tuple[torch.Tensor, ...]

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
        """Copy one layer's K and V of the given token slots from host to device."""
        if not is_draft and not 0 <= layer_id < self.target_layer_num:
            return
        host, device = (page_ids(each, self.page_size) for each in (host_indices, device_indices))

        def load() -> None:
            for device_pages, host_pages in self._sides(layer_id):
                device_pages[device] = host_pages[host]

        copy(load)

    def backup_from_device_all_layer(
        self,
        device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        io_backend: str,
    ) -> None:
        """Copy all layers' K and V of the given token slots from device to host."""
        host, device = (page_ids(each, self.page_size) for each in (host_indices, device_indices))

        def store() -> None:
            for layer_id in range(self.layer_num):
                for device_pages, host_pages in self._sides(layer_id):
                    host_pages[host] = device_pages[device]

        copy(store)

    def _sides(self, layer_id: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Device and host views ``[page, slot, head, dim]`` of a layer's K, and of its V."""
        pairs = (
            (self.device_k_buffers[layer_id], self.k_buffer),
            (self.device_v_buffers[layer_id], self.v_buffer),
        )
        return [
            (
                device.unflatten(0, (-1, self.page_size)),
                host_pages(host, layer_id, self.layout, self.page_size),
            )
            for device, host in pairs
        ]


def page_ids(indices: torch.Tensor, page_size: int) -> torch.Tensor:
    """Page numbers of token slots that must form whole pages, in order.

    Raises:
        ValueError: The slots are not whole pages; copying them by page would corrupt KV.
    """
    first = indices[::page_size]
    whole = (first[:, None] + torch.arange(page_size)).flatten()
    if bool((first % page_size).any()) or not torch.equal(whole, indices):
        raise ValueError(f"HiCache transfer is not in whole pages of {page_size} tokens")
    return first // page_size


def host_pages(buffer: torch.Tensor, layer_id: int, layout: str, page_size: int) -> torch.Tensor:
    """A layer's part of the host's memory, as ``[page, slot, head, dim]``."""
    match layout:
        case "layer_first":  # [layer, token, head, dim]
            return buffer[layer_id].unflatten(0, (-1, page_size))
        case "page_first":  # [token, layer, head, dim]
            return buffer[:, layer_id].unflatten(0, (-1, page_size))
        case "page_first_direct":  # [page, layer, slot, head, dim]
            return buffer[:, layer_id]
        case "page_head":  # [page, head, slot, layer, dim]
            return buffer[:, :, :, layer_id].transpose(1, 2)
    raise ValueError(f"host memory layout {layout!r} has no torch copy")


class TorchMHAHostPool(TorchCopies, MHATokenToKVPoolHost):
    """Host pool of multi-head and grouped-query attention models."""


class TorchAsymmetricMHAHostPool(TorchCopies, AsymmetricMHATokenToKVPoolHost):
    """The same for models whose V heads differ from their K heads in width."""


_TORCH_POOLS: dict[type, type] = {
    MHATokenToKVPoolHost: TorchMHAHostPool,
    AsymmetricMHATokenToKVPoolHost: TorchAsymmetricMHAHostPool,
}


def torch_host_pool(pool_class: type) -> type:
    """The torch twin of one of SGLang's host pools.

    Raises:
        NotImplementedError: The pool copies with a GPU kernel that has no torch twin here.
    """
    twin = _TORCH_POOLS.get(pool_class)
    if twin is None:
        raise NotImplementedError(
            f"HiCache with {pool_class.__name__} needs a GPU; the emulator copies "
            f"{', '.join(known.__name__ for known in _TORCH_POOLS)}"
        )
    return twin
