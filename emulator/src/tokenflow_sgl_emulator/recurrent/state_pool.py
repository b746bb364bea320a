"""HiCache's host pool of recurrent states with torch copies, as `host_pool` has them for KV.

SGLang names the class itself, so the methods of its own are replaced.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tokenflow_sgl_emulator.late_copies import copy


def load_to_device_per_layer(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    layer_id: int,
    io_backend: str = "kernel",
    *,
    is_draft: bool = False,
) -> None:
    """Copy one layer's states of the given slots from host to device."""
    host, device = host_indices.long(), device_indices.long()

    def load() -> None:
        for layers, states in _sides(pool):
            layers[layer_id][device] = states[host, layer_id, 0]

    copy(load)


def backup_from_device_all_layer(
    pool: Any,
    device_pool: Any,
    host_indices: torch.Tensor,
    device_indices: torch.Tensor,
    io_backend: str = "kernel",
) -> None:
    """Copy all layers' states of the given slots from device to host."""
    host, device = host_indices.long(), device_indices.long()

    def store() -> None:
        for layers, states in _sides(pool):
            for number, layer in enumerate(layers):
                states[host, number, 0] = layer[device]

    copy(store)


def copied(original: Callable[..., Any], pool: Any, indices: torch.Tensor) -> Any:
    """States on the host, where SGLang keeps those of requests that it retracts.

    Copying to the host copies nothing where the device is the host: the states of one slot would
    be those that it has later.
    """
    return tree_map(torch.Tensor.clone, original(pool, indices))


def _sides(pool: Any) -> Iterator[tuple[Sequence[torch.Tensor], torch.Tensor]]:
    """Each kind of state: by layer on the device [slot, ...], on the host [slot, layer, 1, ...].

    Raises:
        NotImplementedError: There are others beside these, or the host has them in another order.
    """
    if pool.slot_state_device_tensors or pool.layout == "layer_first":
        raise NotImplementedError(f"no torch copy of these states in layout {pool.layout!r}")
    if pool.temporal_state_elem_size:  # a convolution has no other state
        yield pool.temporal_device_layers, pool.temporal_buffer
    yield from zip(pool.conv_device_layers, pool.conv_buffer, strict=True)
