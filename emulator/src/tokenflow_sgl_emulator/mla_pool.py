"""HiCache's host pool for MLA models with torch copies, as `host_pool` has them for others.

SGLang lets no platform choose the class, so the methods of its own are replaced.
"""

from collections.abc import Callable
from typing import Any

import torch

from tokenflow_sgl_emulator.emulator_seam import is_older
from tokenflow_sgl_emulator.host_pool import host_pages, page_ids
from tokenflow_sgl_emulator.late_copies import copy


def without_pinned_memory(
    original: Callable[..., None], pool: Any, *args: Any, **kwargs: Any
) -> None:
    """Around the pool's constructor: pinning is cudaHostRegister."""
    original(pool, *args, **{**kwargs, "pin_memory": False})


def load_to_device_per_layer(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """Copy one layer's latent rows of the given token slots from host to device."""
    if not is_draft and not is_older() and layer_id not in pool._target_layer_indices:
        return
    host, device = (page_ids(each, pool.page_size) for each in (host_indices, device_indices))

    def load() -> None:
        device_pages, pages = _sides(pool, layer_id)
        device_pages[device] = pages[host]

    copy(load)


def backup_from_device_all_layer(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str,
) -> None:
    """Copy all layers' latent rows of the given token slots from device to host."""
    host, device = (page_ids(each, pool.page_size) for each in (host_indices, device_indices))
    copy(lambda: _store(pool, host, device))


def _store(pool: Any, host: torch.Tensor, device: torch.Tensor) -> None:
    older = range(len(pool.device_kv_buffers)) if is_older() else ()
    for layer_id in older or pool._buffer_index_by_layer:
        device_pages, pages = _sides(pool, layer_id)
        pages[host] = device_pages[device]


def _sides(pool: Any, layer_id: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Device and host views ``[page, slot, 1, dim]`` of a layer."""
    if is_older():
        place, row = layer_id, pool._host_layer_index(layer_id)
    else:
        place, row = pool._buffer_index_by_layer[layer_id], pool._host_layer_by_controller[layer_id]
    device = pool.device_kv_buffers[place]
    return (
        device.unflatten(0, (-1, pool.page_size)),
        host_pages(pool.kv_buffer, row, pool.layout, pool.page_size),
    )
