"""SGLang's attention with its KV in the arena: per layer, other places, and a wait before it."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.platforms import current_platform

from tokenflow_sgl.engine.layerwise.attention_view import AttentionView, refused_backend
from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool, TellingAllocator
from tokenflow_sgl.engine.layerwise.native_view import NativeView
from tokenflow_sgl.engine.layerwise.start_check import check_attention
from tokenflow_sgl.engine.layerwise.step_rows import step_rows
from tokenflow_sgl.engine.layerwise.triton_view import TRITON, TritonView
from tokenflow_sgl.engine.layerwise_settings import (
    LAYERWISE_ATTENTION,
    LayerwiseSettings,
)
from tokenflow_sgl.engine.sglang.attention import AttentionLayer
from tokenflow_sgl.engine.sglang.batch import ForwardStep
from tokenflow_sgl.engine.sglang.overriding import checked, overrides
from tokenflow_sgl.engine.sglang.worker import Runner


def register_layerwise_attention(settings: LayerwiseSettings) -> None:
    """Make it known to SGLang, in the scheduler's process."""

    def make(runner: Runner) -> LayerwiseAttention:
        return LayerwiseAttention(runner, settings.attention or _usual(runner.device))

    register_attention_backend(LAYERWISE_ATTENTION)(make)


def _usual(device: str) -> str:
    """The backend where the options name none: the platform's, but on GPUs."""
    if _on_gpu(device):
        return TRITON
    name: str = current_platform.get_default_attention_backend()
    return name


def _on_gpu(device: str) -> bool:
    kind: str = torch.device(device).type
    return kind == "cuda"


def _view(runner: Runner, name: str) -> AttentionView:
    if name == TRITON:
        return TritonView(runner)
    if _on_gpu(runner.device):
        raise refused_backend(name, f"on GPUs only {TRITON} can be told where a layer has KV")
    return NativeView(runner, name)


def _check_ours(found: Any, ours: type) -> None:
    if not isinstance(found, ours):
        raise RuntimeError(
            f"--tokenflow-layerwise could not put its {ours.__name__} in place: there is "
            f"{type(found).__module__}.{type(found).__qualname__}. Another plugin may have "
            "replaced it."
        )


@checked
class LayerwiseAttention(AttentionBackend):  # type: ignore[misc]
    """Lets SGLang's backend compute in each layer as soon as the layer's KV is there.

    Raises:
        UnsupportedError: The backend looks for KV in a way that cannot be changed.
        RuntimeError: The pool or its allocator is not ours, or attention through the table is not
            what it should be.
    """

    def __init__(self, runner: Runner, name: str) -> None:
        super().__init__()
        pool = runner.token_to_kv_pool
        _check_ours(pool, LayerwisePool)
        _check_ours(runner.token_to_kv_pool_allocator, TellingAllocator)
        # SGLang and its models ask the backend for these two.
        self.token_to_kv_pool, self.req_to_token_pool = pool, runner.req_to_token_pool
        self._executor = pool.executor
        self._table = runner.req_to_token_pool.req_to_token
        self._view = _view(runner, name)
        if _on_gpu(runner.device):
            check_attention(self._view.inner, pool)
        # Of steps at start that are no stream's.
        inner = self._view.inner
        self.extend_dummy_seqs_capped_by_req_pool = inner.extend_dummy_seqs_capped_by_req_pool

    @overrides("a step begins")
    def init_forward_metadata(self, forward_batch: ForwardStep) -> None:
        """Prepare a step: which layers' KV has to be where before which layer computes."""
        idle = forward_batch.forward_mode.is_idle()
        step = [] if idle else step_rows(forward_batch, self._table)
        if step:
            self._executor.begin(step)
        self.token_to_kv_pool.cells.update()
        self._view.begin(forward_batch, step)

    @overrides("lets each layer of a prefill wait for its KV")
    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: AttentionLayer,
        forward_batch: ForwardStep,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """One layer of a prefill, of a chunk, or of both mixed with decoding streams."""
        compute = self._view.inner.forward_extend
        return self._layer(compute, (q, k, v, layer, forward_batch, save_kv_cache), kwargs)

    @overrides("lets each layer of a decode step wait for its KV")
    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: AttentionLayer,
        forward_batch: ForwardStep,
        save_kv_cache: bool = True,
        **kwargs: Any,
    ) -> torch.Tensor:
        """One layer of a decode step."""
        compute = self._view.inner.forward_decode
        return self._layer(compute, (q, k, v, layer, forward_batch, save_kv_cache), kwargs)

    def before_layer(self, layer: int) -> None:
        """A layer is about to use its KV; an emulated model, which reads none, calls it itself."""
        self._executor.before(layer)

    def after_layer(self, layer: int) -> None:
        """A layer has used its KV."""
        self._executor.after(layer)

    @overrides("as the attention that computes")
    def support_triton(self) -> bool:
        """Whether Triton's kernels can be used, as the inner backend says."""
        supported: bool = self._view.inner.support_triton()
        return supported

    @overrides("what SGLang asks for where it tunes kernels at start")
    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """Length that fills rows of CUDA graphs, of the inner backend; asked at start, too."""
        value: int = self._view.inner.get_cuda_graph_seq_len_fill_value()
        return value

    def _layer(self, compute: Any, given: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
        _, key, _, layer, _, save_kv_cache = given
        if key is None or not save_kv_cache:
            raise RuntimeError(
                "--tokenflow-layerwise: the model or an option stores KV beside SGLang's "
                "attention, or shares a layer's with another; start without one of the two."
            )
        number = layer.layer_id
        self.before_layer(number)
        self._view.look(number)
        with self.token_to_kv_pool.read_by_attention():
            output: torch.Tensor = compute(*given, **kwargs)
        self.after_layer(number)
        return output
