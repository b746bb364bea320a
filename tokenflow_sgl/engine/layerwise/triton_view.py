"""For SGLang's Triton backend: its kernels read where the step's list of places says.

They add numbers of that list to addresses, in units of tokens of one buffer. So they need not know
that the buffer is an arena, nor that the list is another one in each layer. All products of places
and strides are of 64 bits there, since the places are: an arena of all layers is too large for 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

from tokenflow_sgl.engine.layerwise.attention_view import refused_backend
from tokenflow_sgl.engine.layerwise.layer_executor import StepRow
from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool
from tokenflow_sgl.engine.sglang.batch import ForwardStep
from tokenflow_sgl.engine.sglang.worker import Runner

TRITON = "triton"
"""SGLang's name of the backend."""


class TritonView:
    """Attention by Triton's kernels over one layer's places; see `AttentionView`.

    Args:
        runner: SGLang's model runner.

    Raises:
        UnsupportedError: The backend would also read through another list.
    """

    def __init__(self, runner: Runner) -> None:
        self._pool: LayerwisePool = runner.token_to_kv_pool
        with self._pool.read_by_attention():  # it looks how wide values are
            self.inner: Any = ATTENTION_BACKENDS[TRITON](runner)
        if not isinstance(self.inner, TritonAttnBackend):
            raise refused_backend(TRITON, "another plugin has replaced it")
        if self.inner.enable_deterministic:
            raise refused_backend(
                TRITON, "in deterministic inference it reads new tokens in another way"
            )
        if self.inner.sliding_window_size:
            raise refused_backend(TRITON, "for sliding windows it has places of its own")
        self._logical: Any = None

    def begin(self, forward_batch: ForwardStep, step: Sequence[StepRow]) -> None:
        """The backend lists places as SGLang counts them; these are kept."""
        self.inner.init_forward_metadata(forward_batch)
        self._logical = None
        if not step or forward_batch.forward_mode.is_idle():
            return
        # New tokens of a prefill are not read from the arena. The list may be longer than needed,
        # and what is behind that is no place.
        new = not forward_batch.forward_mode.is_decode()
        read = sum(row.places.size - new * row.new for row in step)
        self._logical = self.inner.forward_metadata.kv_indices[:read]

    def look(self, layer: int) -> None:
        """Another list, made on the device."""
        if self._logical is not None:
            self.inner.forward_metadata.kv_indices = self._pool.where(layer, self._logical)
