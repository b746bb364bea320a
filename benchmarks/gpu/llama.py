"""A Llama-shaped model with random weights: the work of a step, in plain torch.

One step decodes rows, prefills a chunk of one request, or does both; its tokens mean nothing. KV
lies in one piece per step: rows and their contexts are views of the same memory, so that any batch
and context that fit can be tried without moving anything. No paged attention, no fused kernels:
what a serving engine does better is not here (see README.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from tokenflow_sgl.lab.profiles import Model

TOY = Model(
    name="toy",
    hub_id="none",
    architecture="LlamaForCausalLM",
    layers=2,
    hidden=64,
    intermediate=128,
    heads=4,
    kv_heads=2,
    head_dim=16,
    vocabulary=256,
)
"""Small enough for a CPU in a test."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes.

    Attributes:
        rows: Requests that decode one token.
        context: KV tokens that each of them reads, its own included.
        chunk: New tokens of one request that is prefilled.
        prefix: Tokens before them whose KV is there.
        room: Tokens that their request's memory is laid out for, so that one chunk after the other
            can be prefilled; 0: prefix and chunk.
    """

    rows: int = 0
    context: int = 0
    chunk: int = 0
    prefix: int = 0
    room: int = 0


class Llama:
    """The model with memory for KV.

    Args:
        shape: Layers, widths and heads.
        kv_tokens: Tokens of KV to make room for.
        device: Where it lives: `cuda` or `cpu`.
    """

    def __init__(self, shape: Model, kv_tokens: int, device: str) -> None:
        self.shape = shape
        self.kv_tokens = kv_tokens
        self.device = device
        heads = shape.heads + 2 * shape.kv_heads
        self.embedding = self._weight(shape.vocabulary, shape.hidden)
        self.output = self._weight(shape.vocabulary, shape.hidden)
        self.layers = [
            (
                self._weight(heads * shape.head_dim, shape.hidden),
                self._weight(shape.hidden, shape.heads * shape.head_dim),
                self._weight(2 * shape.intermediate, shape.hidden),
                self._weight(shape.hidden, shape.intermediate),
            )
            for _ in range(shape.layers)
        ]
        self.norm = torch.ones(shape.hidden, dtype=torch.bfloat16, device=device)
        size = kv_tokens * shape.kv_heads * shape.head_dim
        self.keys = [self._weight(size) for _ in range(shape.layers)]
        self.values = [self._weight(size) for _ in range(shape.layers)]

    def _weight(self, *size: int) -> Tensor:
        made = torch.empty(*size, dtype=torch.bfloat16, device=self.device)
        # The power that products draw, and so their speed, depends on the values: no zeros.
        return made.normal_(0.0, 0.02)

    @torch.inference_mode()
    def run(self, step: Step, tokens: Tensor, angles: Tensor) -> Tensor:
        """Compute a step.

        Args:
            step: What is in it.
            tokens: Its `rows + chunk` token numbers.
            angles: Their rotary angles, of shape (tokens, head_dim / 2).

        Returns:
            The next token of each row, and of the chunk's request.
        """
        shape = self.shape
        hidden = F.embedding(tokens, self.embedding)
        cos, sin = angles.cos()[:, None, :], angles.sin()[:, None, :]
        for number, (qkv, out, up, down) in enumerate(self.layers):
            normed = F.rms_norm(hidden, (shape.hidden,), self.norm)
            projected = F.linear(normed, qkv).view(len(tokens), -1, shape.head_dim)
            query, key, value = projected.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
            query, key = _rotated(query, cos, sin), _rotated(key, cos, sin)
            parts = []
            if step.rows:
                rows = slice(0, step.rows)
                parts.append(self._decode(number, step, query[rows], key[rows], value[rows]))
            if step.chunk:
                rest = slice(step.rows, None)
                parts.append(self._prefill(number, step, query[rest], key[rest], value[rest]))
            mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
            hidden = hidden + F.linear(mixed, out)
            normed = F.rms_norm(hidden, (shape.hidden,), self.norm)
            gate, rise = F.linear(normed, up).chunk(2, dim=-1)
            hidden = hidden + F.linear(F.silu(gate) * rise, down)
        last = hidden if not step.chunk else torch.cat((hidden[: step.rows], hidden[-1:]))
        last = F.rms_norm(last, (shape.hidden,), self.norm)
        return F.linear(last, self.output).argmax(dim=-1)

    def inputs(self, step: Step) -> tuple[Tensor, Tensor]:
        """Token numbers and rotary angles for a step."""
        count = step.rows + step.chunk
        tokens = torch.randint(self.shape.vocabulary, (count,), device=self.device)
        angles = torch.rand(count, self.shape.head_dim // 2, device=self.device)
        return tokens, angles.to(torch.bfloat16)

    def kv(self, layer: int, requests: int, length: int, skip: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values of requests of that length, after `skip` tokens of memory."""
        width = self.shape.kv_heads * self.shape.head_dim
        size = (requests, self.shape.kv_heads, length, self.shape.head_dim)
        begin, end = skip * width, (skip + requests * length) * width
        return self.keys[layer][begin:end].view(size), self.values[layer][begin:end].view(size)

    def _decode(self, layer: int, step: Step, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        shape = self.shape
        keys, values = self.kv(layer, step.rows, step.context)
        keys[:, :, -1], values[:, :, -1] = key, value
        # The queries that share a key are as many queries of one head: KV is read once for them.
        grouped = query.view(step.rows, shape.kv_heads, -1, shape.head_dim)
        mixed = F.scaled_dot_product_attention(grouped, keys, values)
        return mixed.reshape(step.rows, -1)

    def _prefill(self, layer: int, step: Step, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length = step.prefix + step.chunk
        room = self.kv(layer, 1, step.room or length, step.rows * step.context)
        keys, values = (each[:, :, :length] for each in room)
        keys[0, :, step.prefix :] = key.transpose(0, 1)
        values[0, :, step.prefix :] = value.transpose(0, 1)
        # The queries that share a key are heads of one request; the key is theirs without a copy.
        grouped = query.transpose(0, 1).view(self.shape.kv_heads, -1, *query.shape[::2])
        shared = (-1, grouped.shape[1], -1, -1)
        mixed = F.scaled_dot_product_attention(
            grouped,
            keys.transpose(0, 1).expand(shared),
            values.transpose(0, 1).expand(shared),
            attn_mask=causal_lower_right(step.chunk, length),
        )
        return mixed.reshape(-1, *query.shape[::2]).transpose(0, 1).reshape(step.chunk, -1)


def _rotated(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
