"""For backends like SGLang's torch backend: they look in the runner's table of places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from tokenflow_sgl.engine.layerwise.attention_view import refused_backend
from tokenflow_sgl.engine.layerwise.layer_executor import StepRow
from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool
from tokenflow_sgl.engine.sglang.batch import ForwardStep
from tokenflow_sgl.engine.sglang.worker import Runner


class PlacesOfLayer:
    """Stands for SGLang's table of the places of tokens, in one layer of one step.

    Args:
        table: SGLang's, of shape (rows, context).
        pool: Knows where a layer has its tokens.

    Attributes:
        req_to_token: Of shape (rows, longest context of the step); only rows of the step have
            content.
    """

    def __init__(self, table: torch.Tensor, pool: LayerwisePool) -> None:
        self._table, self._pool = table, pool
        self._rows = torch.zeros(0, dtype=torch.int64)
        self.req_to_token = table[:, :0].long()

    def begin(self, rows: torch.Tensor, longest: int) -> None:
        """A step of these rows begins, none of which has more tokens than `longest`."""
        self._rows = rows
        self._logical = self._table[rows, :longest].long()
        # Not zeros: most rows are never touched, and all of them together can be 600 MB.
        self.req_to_token = torch.empty((self._table.shape[0], longest), dtype=torch.int64)

    def look(self, layer: int) -> None:
        """From now on in this layer."""
        self.req_to_token[self._rows] = self._pool.where(layer, self._logical)


class RunnerInArena:
    """SGLang's model runner as the inner backend sees it: with other places of tokens."""

    def __init__(self, runner: Runner, places: PlacesOfLayer) -> None:
        self._runner = runner
        self.req_to_token_pool = places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class NativeView:
    """Attention by torch's own kernels over one layer's places; see `AttentionView`.

    Args:
        runner: SGLang's model runner.
        name: Of the backend, in SGLang's registry.

    Raises:
        UnsupportedError: It is of another kind.
    """

    def __init__(self, runner: Runner, name: str) -> None:
        table = runner.req_to_token_pool.req_to_token
        self._places = PlacesOfLayer(table, runner.token_to_kv_pool)
        self.inner: Any = ATTENTION_BACKENDS[name](RunnerInArena(runner, self._places))
        if not isinstance(self.inner, TorchNativeAttnBackend):
            raise refused_backend(
                name, "only those like torch_native, and triton, can be told where a layer has KV"
            )

    def begin(self, forward_batch: ForwardStep, step: Sequence[StepRow]) -> None:
        """Begin a step, which reads by another table of places."""
        if step:
            longest = max(row.places.size for row in step)
            self._places.begin(forward_batch.req_pool_indices, longest)
        self.inner.init_forward_metadata(forward_batch)

    def look(self, layer: int) -> None:
        """The rows of the step."""
        self._places.look(layer)
