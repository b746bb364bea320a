"""Copies of a prefix' upper layers to the device while its lower layers are computed.

They go to the request's own memory, which SGLang has allocated for the prompt: each layer that has
arrived on the host is copied there, for all tokens of the prefix, the last layer first.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from sglang.srt.managers.cache_controller import CacheOperation
from sglang.srt.utils.common import get_device_module

from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.sglang.controller import StorageFetch
from tokenflow_sgl.engine.sglang.tree import Tree
from tokenflow_sgl.engine.telemetry.sparing import Sparing

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())


class FetchedLayerCopies(TailCopies):
    """Copies of one request's layers as they are fetched; they take no device memory of their own.

    Args:
        tree: SGLang's.
        operation: Its fetch, layer by layer.
        layers: Of the model.
    """

    asked = True

    def __init__(self, tree: Tree, operation: StorageFetch, layers: int) -> None:
        super().__init__(tree, operation)
        self._layers = layers
        self._pairs: tuple[torch.Tensor, torch.Tensor] | None = None  # places on host and device
        self._device: torch.device | None = None
        self._last: Any = None
        self._failed = False

    @property
    def over(self) -> bool:
        """Whether no more is copied, and what was is not to be used."""
        return self._over

    def begin(self, host: torch.Tensor, device: torch.Tensor, landed: int) -> None:
        """From now on copy what arrives.

        Args:
            host: Places of the prefix' tokens in the host's memory.
            device: Those in the device's, in the same order.
            landed: Layers that have arrived, from the last one on.
        """
        stream, fence = self._stream, self._controller.load_fence_stream
        # Who had this memory before may still use it.
        if fence is not None:
            stream.wait_stream(fence)
        stream.wait_stream(get_device_module().current_stream())
        self._device = device.device
        if self._controller.io_backend == "direct":
            device = device.cpu()
        with self._lock:
            self._pairs = host, device
        self.copy(landed)

    def copy(self, arrived: int) -> None:
        """Copy what has arrived and was not copied yet, in layers."""
        with self._lock:
            if self._over or self._failed:
                return
            try:
                self._copy(arrived)
            except Exception as error:
                self._failed = True  # the rest is copied in the end
                logger.warning(
                    "tokenflow: a copy to the device failed (%s: %s)", type(error).__name__, error
                )

    def _copy(self, arrived: int) -> None:
        if self._pairs is None or arrived <= self._copied:
            return
        host, device = self._pairs
        get_device_module().set_device(self._device)  # this thread begins with the first one
        layers = range(self._layers - arrived, self._layers - self._copied)
        self._submit_layers(host, device, layers)
        self._copied = arrived

    def give_back(self) -> None:
        """Copy no more: the memory goes back to SGLang, and nothing uses it before copies end."""
        with self._lock:
            self._over = True
        if self._last is not None:
            get_device_module().current_stream().wait_stream(self._stream)

    def finish(self, landed: int) -> None:
        """Whatever the device does from here on waits for the layers that have landed."""
        with self._lock:
            self._copy(landed)
        self.give_back()

    @property
    def ended(self) -> bool:
        """Whether none is under way and none comes: the host's memory is not read any more."""
        return self._over and (self._last is None or bool(self._last.query()))

    def _submit_layers(self, host: torch.Tensor, device: torch.Tensor, layers: range) -> None:
        controller = self._controller
        with get_device_module().stream(self._stream):
            moved, places, _ = controller._move_op_indices(CacheOperation(host, device, -1))
            transfers = [
                transfer._replace(layer_mapper=_only(layers, transfer.layer_mapper))
                for transfer in controller._l2_load_transfers(moved, places)
            ]
            self._last = controller.l2_transfer_engine.submit_host_to_device(
                transfers, transfer_layer_id_max=controller.transfer_layer_id_max
            ).finish_event


def _only(layers: range, mapper: Any) -> Any:
    """A transfer's layers, without those that are not copied yet or are computed."""

    def mapped(layer: int) -> int | None:
        if layer not in layers:
            return None
        return layer if mapper is None else mapper(layer)

    return mapped
