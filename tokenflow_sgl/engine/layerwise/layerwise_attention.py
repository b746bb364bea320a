"""SGLang's attention with its KV in the arena: per layer, other places, and a wait before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sglang.srt.layers.attention.attention_registry import (
    ATTENTION_BACKENDS,
    register_attention_backend,
)
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.platforms import current_platform

from tokenflow_sgl.engine.layerwise.layer_executor import StepRow
from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool, TellingAllocator
from tokenflow_sgl.engine.layerwise.layerwise_settings import (
    LAYERWISE_ATTENTION,
    LayerwiseSettings,
)
from tokenflow_sgl.engine.layerwise.row_watch import RowWatch
from tokenflow_sgl.engine.unsupported import UnsupportedError


def register_layerwise_attention(settings: LayerwiseSettings) -> None:
    """Make it known to SGLang, in the scheduler's process."""

    def make(runner: Any) -> LayerwiseAttention:
        name = settings.attention or current_platform.get_default_attention_backend()
        return LayerwiseAttention(runner, name)

    register_attention_backend(LAYERWISE_ATTENTION)(make)


def _check_ours(found: Any, ours: type) -> None:
    if not isinstance(found, ours):
        raise RuntimeError(
            f"--tokenflow-layerwise could not put its {ours.__name__} in place: there is "
            f"{type(found).__module__}.{type(found).__qualname__}. Another plugin may have "
            "replaced it."
        )


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

    def __init__(self, runner: Any, places: PlacesOfLayer) -> None:
        self._runner = runner
        self.req_to_token_pool = places

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class LayerwiseAttention(AttentionBackend):  # type: ignore[misc]
    """Lets SGLang's backend compute in each layer as soon as the layer's KV is there.

    Raises:
        UnsupportedError: The backend looks for KV in another way than SGLang's torch backend.
        RuntimeError: The pool or its allocator is not ours.
    """

    def __init__(self, runner: Any, name: str) -> None:
        super().__init__()
        pool = runner.token_to_kv_pool
        _check_ours(pool, LayerwisePool)
        _check_ours(runner.token_to_kv_pool_allocator, TellingAllocator)
        # SGLang and its models ask the backend for these two.
        self.token_to_kv_pool, self.req_to_token_pool = pool, runner.req_to_token_pool
        self._executor = pool.executor
        self._size = pool.page_size
        self._table = runner.req_to_token_pool.req_to_token
        self._watch = RowWatch(runner.req_to_token_pool)
        self._places = PlacesOfLayer(self._table, pool)
        self._inner = ATTENTION_BACKENDS[name](RunnerInArena(runner, self._places))
        if not isinstance(self._inner, TorchNativeAttnBackend):
            raise UnsupportedError(
                f"--tokenflow-layerwise does not work with --attention-backend {name}: only "
                "backends that are like torch_native look for KV layer by layer; remove one of the "
                "two."
            )

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """A step begins."""
        if not forward_batch.forward_mode.is_idle():
            rows, lengths = forward_batch.req_pool_indices, forward_batch.seq_lens.tolist()
            new = [1] * len(lengths)
            if not forward_batch.forward_mode.is_decode():
                new = forward_batch.extend_seq_lens.tolist()
            step = [
                StepRow(row, self._table[row, :length].numpy().astype(np.int64), tokens)
                for row, length, tokens in zip(rows.tolist(), lengths, new, strict=True)
            ]
            self._executor.begin(step, self._watch.ended(rows.tolist()))
            self._places.begin(rows, max(lengths))
        self._inner.init_forward_metadata(forward_batch)

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """One layer of a prefill, of a chunk, or of both mixed with decoding streams."""
        compute = self._inner.forward_extend
        return self._layer(compute, (q, k, v, layer, forward_batch, save_kv_cache), kwargs)

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """One layer of a decode step."""
        compute = self._inner.forward_decode
        return self._layer(compute, (q, k, v, layer, forward_batch, save_kv_cache), kwargs)

    def before_layer(self, layer: int) -> None:
        """A layer is about to use its KV; an emulated model, which reads none, calls it itself."""
        self._executor.before(layer)

    def after_layer(self, layer: int) -> None:
        """A layer has used its KV."""
        self._executor.after(layer)

    def support_triton(self) -> bool:
        """As the inner backend."""
        supported: bool = self._inner.support_triton()
        return supported

    def _layer(self, compute: Any, given: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        number = given[3].layer_id
        self.before_layer(number)
        self._places.look(number)
        self.token_to_kv_pool.in_layer = True
        output: torch.Tensor = compute(*given, **kwargs)
        self.token_to_kv_pool.in_layer = False
        self.after_layer(number)
        return output
