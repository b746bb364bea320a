"""Models that profiles are made for: their shape, and what follows from it in bytes and FLOPs.

All are decoder-only transformers with gated MLPs, dense or, where said, a mixture of experts in
each layer, and with grouped-query attention, or a KV head for each query head. Weights and KV are
in bfloat16. The shapes are those of the models' published ``config.json`` files.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

BYTES_PER_VALUE = 2  # bfloat16


@dataclass(frozen=True, slots=True)
class Model:
    """The shape of a model.

    Attributes:
        name: What profiles call it.
        hub_id: The checkpoint that the shape was taken from.
        architecture: Class name in its ``config.json``.
        layers: Transformer layers.
        hidden: Width of the residual stream.
        intermediate: Width of the MLP, or of each expert.
        heads: Query heads.
        kv_heads: Key and value heads.
        head_dim: Width of a head.
        vocabulary: Rows of the embedding; the output matrix is a second one of that size.
        qkv_bias: Query, key and value projections have biases.
        qk_norm: Queries and keys are normalised by head.
        experts: MLPs of a layer; 1: it is dense.
        experts_per_token: Of these, those that a token goes through.
    """

    name: str
    hub_id: str
    architecture: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: int = 1
    experts_per_token: int = 1

    @property
    def parameters(self) -> int:
        """Number of weights of the model."""
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Number of weights that a token goes through."""
        return self._parameters(self.experts_per_token)

    def read_bytes(self, tokens: float) -> float:
        """Bytes of the weights that a step of `tokens` tokens reads.

        Each token picks its experts at random, so that none of them picks an expert with the
        probability (1 - picked / all) ** tokens.
        """
        spared = math.pow(1.0 - self.experts_per_token / self.experts, tokens)
        own = self._parameters(0)
        return BYTES_PER_VALUE * (own + (self.parameters - own) * (1.0 - spared))

    def _parameters(self, experts: int) -> int:
        """Number of weights with so many experts in each layer."""
        projected = (self.heads + 2 * self.kv_heads) * self.head_dim
        attention = self.hidden * projected + self.heads * self.head_dim * self.hidden
        attention += projected if self.qkv_bias else 0
        layer = attention + experts * 3 * self.hidden * self.intermediate + self._undivided()
        return 2 * self.vocabulary * self.hidden + self.layers * layer + self.hidden

    def _undivided(self) -> int:
        """Number of weights of a layer that each device of a group has."""
        norms = 2 * self.hidden + (2 * self.head_dim if self.qk_norm else 0)
        router = self.hidden * self.experts if self.experts > 1 else 0
        return norms + router

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights of the model."""
        return self.parameters * BYTES_PER_VALUE

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, over all layers."""
        return self.held_kv_bytes(1)

    def held_kv_bytes(self, ranks: int) -> int:
        """Bytes of keys and values of one token that so many devices hold together.

        Each has at least one KV head: fewer heads than devices are on several (SGLang 0.5.23,
        `ModelConfig.get_num_kv_heads`).
        """
        return 2 * self.layers * max(self.kv_heads, ranks) * self.head_dim * BYTES_PER_VALUE

    def held_weight_bytes(self, ranks: int) -> int:
        """Bytes of the weights that so many devices hold together.

        They share attention, MLPs, experts and embeddings; each has the norms and the routers, and
        with fewer KV heads than devices, the projections of a whole head.
        """
        spare_heads = max(self.kv_heads, ranks) - self.kv_heads
        projection = self.head_dim * (self.hidden + (1 if self.qkv_bias else 0))
        copied = (ranks - 1) * (self.hidden + self.layers * self._undivided())
        copied += self.layers * 2 * spare_heads * projection
        return self.weight_bytes + copied * BYTES_PER_VALUE

    @property
    def attention_flops(self) -> int:
        """FLOPs of one query token attending to one key, over all layers: QK^T and PV."""
        return 4 * self.layers * self.heads * self.head_dim


def _by_name(*models: Model) -> Mapping[str, Model]:
    return {model.name: model for model in models}


MODELS: Mapping[str, Model] = _by_name(
    Model(
        name="llama3-8b",
        hub_id="meta-llama/Meta-Llama-3.1-8B",
        architecture="LlamaForCausalLM",
        layers=32,
        hidden=4096,
        intermediate=14336,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=128256,
    ),
    Model(
        name="llama3-70b",
        hub_id="meta-llama/Meta-Llama-3.1-70B",
        architecture="LlamaForCausalLM",
        layers=80,
        hidden=8192,
        intermediate=28672,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocabulary=128256,
    ),
    Model(
        name="llama2-7b",
        hub_id="meta-llama/Llama-2-7b-hf",
        architecture="LlamaForCausalLM",
        layers=32,
        hidden=4096,
        intermediate=11008,
        heads=32,
        kv_heads=32,
        head_dim=128,
        vocabulary=32000,
    ),
    Model(
        name="yi-34b",
        hub_id="01-ai/Yi-34B-200K",
        architecture="LlamaForCausalLM",
        layers=60,
        hidden=7168,
        intermediate=20480,
        heads=56,
        kv_heads=8,
        head_dim=128,
        vocabulary=64000,
    ),
    Model(
        name="qwen2.5-7b",
        hub_id="Qwen/Qwen2.5-7B",
        architecture="Qwen2ForCausalLM",
        layers=28,
        hidden=3584,
        intermediate=18944,
        heads=28,
        kv_heads=4,
        head_dim=128,
        vocabulary=152064,
        qkv_bias=True,
    ),
    Model(
        name="qwen2.5-32b",
        hub_id="Qwen/Qwen2.5-32B",
        architecture="Qwen2ForCausalLM",
        layers=64,
        hidden=5120,
        intermediate=27648,
        heads=40,
        kv_heads=8,
        head_dim=128,
        vocabulary=152064,
        qkv_bias=True,
    ),
    Model(
        name="qwen3-8b",
        hub_id="Qwen/Qwen3-8B",
        architecture="Qwen3ForCausalLM",
        layers=36,
        hidden=4096,
        intermediate=12288,
        heads=32,
        kv_heads=8,
        head_dim=128,
        vocabulary=151936,
        qk_norm=True,
    ),
    Model(
        name="qwen3-30b-a3b",
        hub_id="Qwen/Qwen3-30B-A3B",
        architecture="Qwen3MoeForCausalLM",
        layers=48,
        hidden=2048,
        intermediate=768,
        heads=32,
        kv_heads=4,
        head_dim=128,
        vocabulary=151936,
        qk_norm=True,
        experts=128,
        experts_per_token=8,
    ),
    Model(
        name="qwen3-235b-a22b",
        hub_id="Qwen/Qwen3-235B-A22B",
        architecture="Qwen3MoeForCausalLM",
        layers=94,
        hidden=4096,
        intermediate=1536,
        heads=64,
        kv_heads=4,
        head_dim=128,
        vocabulary=151936,
        qk_norm=True,
        experts=128,
        experts_per_token=8,
    ),
    Model(
        name="qwen3-32b",
        hub_id="Qwen/Qwen3-32B",
        architecture="Qwen3ForCausalLM",
        layers=64,
        hidden=5120,
        intermediate=25600,
        heads=64,
        kv_heads=8,
        head_dim=128,
        vocabulary=151936,
        qk_norm=True,
    ),
)
"""The models by name."""
