"""DeepSeek V4's attention in small: windows, compressed rows of both ratios, and an indexer.

Named as SGLang's class, so that SGLang builds V4's pools for it. It has no experts, one residual
stream, and no low-rank projections: none of that touches KV.
"""

from collections.abc import Iterable
from typing import Any

import torch
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.logits_processor import LogitsProcessor
from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from sglang.srt.model_executor.forward_context import get_attn_backend
from sglang.srt.model_loader.weight_utils import default_weight_loader
from torch import nn

from tokenflow_sgl_emulator.compressed import OVERLAPPING, compressed_hooks
from tokenflow_sgl_emulator.compressed.packed_rows import INDEX_WIDTH, ROTATED, WIDTH

OF_DRAFTS = "mtp."
"""How names of weights begin that are the draft layer's."""
_SHARPNESS = 3.0
"""Scores of normed queries and keys are so even that attention would average the context away."""


class _Attention(nn.Module):
    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        # SGLang makes more of `num_attention_heads` for each rank.
        self._layer, self._heads = layer, config.heads_of_weights
        self._ratio, self._best = config.compress_ratios[layer], config.index_topk
        self._index_heads = config.index_n_heads
        hidden = config.hidden_size
        self.q_proj = _linear(hidden, self._heads * WIDTH)
        self.kv_proj = _linear(hidden, WIDTH)
        self.o_proj = _linear(self._heads * WIDTH, hidden)
        parts = 2 if self._ratio == OVERLAPPING else 1  # of a group, and of the next one
        if self._ratio:
            self.gate = _linear(hidden, 2 * parts * WIDTH)
            self.bias = _parameter(self._ratio, parts * WIDTH)
        if self._ratio == OVERLAPPING:
            self.index_q_proj = _linear(hidden, self._index_heads * INDEX_WIDTH)
            self.index_gate = _linear(hidden, 2 * parts * INDEX_WIDTH)
            self.index_bias = _parameter(self._ratio, parts * INDEX_WIDTH)

    def forward(
        self, hidden: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        if forward_batch.forward_mode.is_idle():
            return hidden  # of a rank without tokens, which still takes part in the step
        backend = get_attn_backend()
        pool = backend.token_to_kv_pool
        query = normed(self.q_proj(hidden)[0].unflatten(-1, (self._heads, WIDTH))) * _SHARPNESS
        kv = _rotated(normed(self.kv_proj(hidden)[0]), positions)
        backend.store_window(self._layer, kv, forward_batch)
        index_query = None
        if self._ratio:
            kept = self.gate(hidden)[0]
            made = backend.compress(self._layer, kept, self.bias, self._ratio, index=False)
            if made is not None:
                row = _rotated(normed(made.values), made.starts)
                pool.set_extra_key_buffer_fused(self._layer, made.places, row)
        if self._ratio == OVERLAPPING:
            index_query = self.index_q_proj(hidden)[0].unflatten(-1, (-1, INDEX_WIDTH))
            index_query = _rotated(index_query, positions)
            kept = self.index_gate(hidden)[0]
            made = backend.compress(self._layer, kept, self.index_bias, self._ratio, index=True)
            if made is not None:
                row = _rotated(normed(made.values), made.starts)
                pool.set_index_k_fused(self._layer, made.places, row)
        output = backend.attend(
            self._layer, _rotated(query, positions), index_query, self._ratio, self._best
        )
        projected: torch.Tensor = self.o_proj(output.flatten(1))[0]
        return projected


class CompressedLayer(nn.Module):
    """Attention and an MLP; without compressed rows where the configuration says so.

    Args:
        config: The model's.
        layer: Its number.
    """

    def __init__(self, config: Any, layer: int) -> None:
        super().__init__()
        self.self_attn = _Attention(config, layer)
        self.up_proj = _linear(config.hidden_size, config.intermediate_size)
        self.down_proj = _linear(config.intermediate_size, config.hidden_size)

    def forward(
        self, hidden: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        """Hidden states [tokens, width] behind it."""
        hidden = hidden + self.self_attn(normed(hidden), positions, forward_batch)
        wide = nn.functional.silu(self.up_proj(normed(hidden))[0].double()).to(hidden.dtype)
        output: torch.Tensor = hidden + self.down_proj(wide)[0]
        return output


class DeepseekV4ForCausalLM(nn.Module):
    """The architecture that the configuration names."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        # Not where this module is imported: SGLang imports all of them to find one.
        compressed_hooks.install()
        super().__init__()
        self.config = config
        # Whole on each rank: with DP attention each rank has tokens of its own.
        self.embed_tokens = VocabParallelEmbedding(
            config.vocab_size, config.hidden_size, enable_tp=False
        )
        self.layers = nn.ModuleList(
            CompressedLayer(config, layer) for layer in range(config.num_hidden_layers)
        )
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size)
        self.logits_processor = LogitsProcessor(config)

    @torch.no_grad()
    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
    ) -> Any:
        """Logits of the next tokens."""
        hidden = self.embed_tokens(input_ids)
        for layer in self.layers:
            hidden = layer(hidden, positions, forward_batch)
        return self.logits_processor(input_ids, normed(hidden), self.lm_head, forward_batch)

    def get_attention_sliding_window_size(self) -> int:
        """Tokens that each layer attends to one by one."""
        return int(self.config.sliding_window)

    def get_embed_and_head(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the layer for drafts shares."""
        return self.embed_tokens.weight, self.lm_head.weight

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Each by its name; the layer for drafts loads its own."""
        load_named(self, (each for each in weights if not each[0].startswith(OF_DRAFTS)))


def load_named(module: nn.Module, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Load each of the weights into the parameter of its name."""
    parameters = dict(module.named_parameters())
    for name, value in weights:
        load = getattr(parameters[name], "weight_loader", default_weight_loader)
        load(parameters[name], value)


def _linear(inputs: int, outputs: int) -> Any:
    return ReplicatedLinear(inputs, outputs, bias=False)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)


def normed(values: torch.Tensor) -> torch.Tensor:
    """Rows of root mean square 1."""
    wide = values.double()
    scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    return (wide * scale).to(values.dtype)


def _rotated(values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Turn the last values of each row [tokens, (heads,) width] by its position."""
    half = ROTATED // 2
    angle = positions.double()[:, None] * 10000.0 ** (
        -torch.arange(half, dtype=torch.float64) / half
    )
    cos, sin = angle.cos(), angle.sin()
    if values.dim() == 3:
        cos, sin = cos[:, None], sin[:, None]
    wide = values.double()
    left, right = wide[..., -ROTATED:-half], wide[..., -half:]
    turned = (left * cos - right * sin, left * sin + right * cos)
    return torch.cat([wide[..., :-ROTATED], *turned], -1).to(values.dtype)


EntryClass = DeepseekV4ForCausalLM
