"""Copies between the host's and the device's pages of V4's pools: twins of CUDA copies.

The states have a host pool of the same form as the rows.
"""

from typing import Any

import torch

from tokenflow_sgl_emulator.late_copies import copy


def backup_from_device_all_layer(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor | None,
    device_indices: torch.Tensor | None,
    io_backend: str,
) -> None:
    """Copy all layers' pages of the given places from device to host."""
    pages = _pages(pool, host_indices, device_indices)
    if pages is None:
        return
    host, device = pages

    def store() -> None:
        for layer in range(pool.layer_num):
            _host(pool, layer)[host] = _device(pool, layer)[device]

    copy(store)


def load_to_device_per_layer(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor | None,
    device_indices: torch.Tensor | None,
    layer_id: int,
    io_backend: str,
    *,
    is_draft: bool = False,
) -> None:
    """Copy one layer's pages of the given places from host to device."""
    pages = _pages(pool, host_indices, device_indices)
    if pages is None:
        return
    host, device = pages

    def load() -> None:
        _device(pool, layer_id)[device] = _host(pool, layer_id)[host]

    copy(load)


def _pages(
    pool: Any, host: torch.Tensor | None, device: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor] | None:
    if host is None or device is None or not host.numel():
        return None
    return pool._to_page_indices(host), pool._to_page_indices(device)


def _host(pool: Any, layer: int) -> torch.Tensor:
    """A layer's pages [page, bytes] on the host, in whatever order the pool has them."""
    buffer: torch.Tensor = pool.kv_buffer
    if pool.layout == "layer_first":
        return buffer[layer]
    return buffer[:, layer] if pool.layout == "page_first" else buffer[:, layer, 0]


def _device(pool: Any, layer: int) -> torch.Tensor:
    views = pool.device_buffers if hasattr(pool, "device_buffers") else pool.device_page_views
    pages: torch.Tensor = views[layer]
    return pages.view(torch.uint8)
