"""Some layers of stored pages, read from HiCache's storage by ranges of bytes.

SGLang stores a page as the host's memory has it. With the layouts `layer_first` and
`page_first_direct` that is K of all layers, then V of all layers, each layer in one piece, so that
neighbouring layers of a page are two ranges of bytes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import HiCacheFile
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from tokenflow_sgl.engine.sglang.controller import Controller
from tokenflow_sgl.engine.telemetry.sparing import Sparing

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

_LAYOUTS = ("layer_first", "page_first_direct")


def reads_layers(controller: Controller) -> bool:
    """Whether the storage that is attached now can be read layer by layer.

    SGLang's `file` backend can, and any other with a method `batch_get_layers(keys, host_indices,
    first, last)`: it reads these layers of pages into the places of the host's memory, and says of
    each page whether they are there now.
    """
    pool, storage = controller.storage_host_pool, controller.storage_backend
    if not isinstance(pool, MHATokenToKVPoolHost) or pool.layout not in _LAYOUTS:
        return False
    if pool.head_dim != pool.v_head_dim:
        return False  # K and V are not halves of a page
    return type(storage) is HiCacheFile or hasattr(storage, "batch_get_layers")


def read_layers(
    controller: Controller, keys: list[str], host_indices: torch.Tensor, layers: range
) -> bool:
    """Read neighbouring layers of pages; whether all of them are there now.

    Args:
        controller: SGLang's, for which `reads_layers`.
        keys: Of the pages.
        host_indices: Places of their tokens in the host's memory, page by page.
        layers: Of the model.
    """
    storage, pool = controller.storage_backend, controller.storage_host_pool
    if hasattr(storage, "batch_get_layers"):
        return all(storage.batch_get_layers(keys, host_indices, layers.start, layers.stop))
    slots = host_indices[:: int(pool.page_size)].tolist()
    return all(
        _from_file(storage, pool, key, slot, layers) for key, slot in zip(keys, slots, strict=True)
    )


def layers_of_page(pool: Any, slot: int, layers: range) -> torch.Tensor:
    """K and V of some layers of the page at a place of the host's memory, [2, layer, ...]."""
    page = int(pool.page_size)
    span = slice(layers.start, layers.stop)
    if pool.layout == "layer_first":
        found: torch.Tensor = pool.kv_buffer[:, span, slot : slot + page]
    else:
        found = pool.kv_buffer[:, slot // page, span]
    return found


def _from_file(storage: HiCacheFile, pool: Any, key: str, slot: int, layers: range) -> bool:
    target = layers_of_page(pool, slot, layers)
    path = Path(storage.file_path) / f"{storage._get_suffixed_key(key)}.bin"
    part = target[0].numel() * target.element_size()
    layer = part // len(layers)
    half = layer * int(pool.layer_num)
    try:
        if path.stat().st_size != 2 * half:
            return False
        with path.open("rb", buffering=0) as file:
            for number in range(2):
                file.seek(number * half + layers.start * layer)
                read = bytearray(part)
                if file.readinto(read) != part:
                    return False
                flat = torch.frombuffer(read, dtype=target.dtype)
                target[number].copy_(flat.view(target[number].shape))
    except FileNotFoundError:
        logger.warning("tokenflow: page %s is not in the storage any more", key)
        return False
    return True
