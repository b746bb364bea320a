"""Steps of attention on a CPU: SGLang's pool, allocator and table, and a backend over them."""

from __future__ import annotations

import random
import warnings
from types import SimpleNamespace

import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool, telling

from layerwise_body import RandomLayouts

from tokenflow_sgl.engine.layerwise_settings import LayerwiseSettings

LAYERS, HEADS, KV_HEADS, WIDTH = 3, 4, 2, 16
TOKENS, ROWS = 192, 4
STEPS: tuple[int | dict[int, int], ...] = (
    *({1: 9}, {1: 7, 2: 5}, {1: 1, 2: 1}, {3: 12}, {1: 1, 2: 6, 3: 1}, {1: 1, 2: 1, 3: 1}),
    *(3, {1: 1, 2: 1}, {3: 21, 4: 2}, {1: 1, 2: 1, 3: 1, 4: 1}, {1: 1, 2: 1, 3: 1, 4: 1}),
)
"""New tokens of each row, or a row that ends: prefills, chunks, decode steps, and both mixed."""


class AnyLayers(RandomLayouts):
    """Made without arguments."""

    def __init__(self) -> None:
        super().__init__(random.Random(5))


def ours(planner: str = f"{__name__}:AnyLayers") -> type:
    """Our pool, of a launch with a ratio of 3."""
    return type("Ours", (LayerwisePool,), {"settings": LayerwiseSettings(planner, 3.0)})


def runner(page: int, pool_class: type) -> SimpleNamespace:
    """What a backend asks SGLang's model runner for."""
    given = dict(page_size=page, dtype=torch.float32, head_num=KV_HEADS, head_dim=WIDTH)
    given |= dict(layer_num=LAYERS, device="cpu", enable_memory_saver=False)
    pool = pool_class(TOKENS, **given)
    taken = torch.float32, "cpu", pool, False
    plain = (
        TokenToKVPoolAllocator(TOKENS, *taken)
        if page == 1
        else PagedTokenToKVPoolAllocator(TOKENS, page, *taken)
    )
    table = torch.zeros(ROWS + 1, TOKENS, dtype=torch.int32)
    allocator = telling(plain)
    return SimpleNamespace(
        device="cpu",
        page_size=page,
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=allocator,
        req_to_token_pool=SimpleNamespace(req_to_token=table, size=ROWS),
        kv_index_translator=KVIndexTranslator(
            req_to_token=table,
            token_to_kv_pool_allocator=allocator,
            token_to_kv_pool=pool,
            page_size=page,
            device="cpu",
        ),
    )


def layer(number: int) -> SimpleNamespace:
    """What a backend asks a layer of a model for."""
    return SimpleNamespace(
        layer_id=number,
        qk_head_dim=WIDTH,
        v_head_dim=WIDTH,
        tp_q_head_num=HEADS,
        tp_k_head_num=KV_HEADS,
        is_cross_attention=False,
        attn_type=AttentionType.DECODER,
        scaling=WIDTH**-0.5,
        sliding_window_size=None,
        logit_cap=0.0,
        logit_capping_method="tanh",
        k_scale=None,
        v_scale=None,
        xai_temperature_len=-1,
    )


class Server:
    """Rows of one runner, and steps of them.

    known: SGLang has the lengths on the host, too.
    """

    def __init__(self, made: SimpleNamespace, backend, *, known: bool = False) -> None:
        self._made, self._backend, self._known = made, backend, known
        self._lengths = [0] * (ROWS + 1)

    def run(self, steps=STEPS) -> list[torch.Tensor]:
        """The outputs of each layer in each step; the same numbers for each server."""
        numbers = torch.Generator().manual_seed(1)
        outputs = []
        for step in steps:
            if isinstance(step, int):
                self.end(step)
            else:
                outputs += self.step(step, numbers)
        return outputs

    def step(self, new: dict[int, int], numbers: torch.Generator) -> list[torch.Tensor]:
        """Each layer's output; `numbers` makes queries, keys and values."""
        batch = self._batch(new)
        self._backend.init_forward_metadata(batch)
        decode = batch.forward_mode.is_decode()
        forward = self._backend.forward_decode if decode else self._backend.forward_extend
        outputs = []
        for number in range(LAYERS):
            q, k, v = (
                torch.randn(sum(new.values()), heads * WIDTH, generator=numbers)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            )
            k, v = (each.view(-1, KV_HEADS, WIDTH) for each in (k, v))
            outputs.append(forward(q, k, v, layer(number), batch).flatten(1))
        return outputs

    def end(self, row: int) -> None:
        """A row gives its pages back."""
        own = self._made.req_to_token_pool.req_to_token[row, : self._lengths[row]].long()
        self._made.token_to_kv_pool_allocator.free(own)
        self._lengths[row] = 0

    def _batch(self, new: dict[int, int]) -> SimpleNamespace:
        before = torch.tensor([self._lengths[row] for row in new])
        lengths = before + torch.tensor([*new.values()])
        rows, places = torch.tensor([*new]), self._placed(new, before, lengths)
        decode = set(new.values()) == {1}
        batch = SimpleNamespace(
            forward_mode=ForwardMode.DECODE if decode else ForwardMode.EXTEND,
            batch_size=len(new),
            req_pool_indices=rows,
            seq_lens=lengths,
            seq_lens_cpu=lengths if self._known else None,
            seq_lens_sum=int(lengths.sum()) if self._known else None,
            extend_seq_lens=None if decode else torch.tensor([*new.values()]),
            extend_seq_lens_cpu=[*new.values()] if self._known and not decode else None,
            extend_prefix_lens=None if decode else before,
            extend_prefix_lens_cpu=before.tolist() if self._known and not decode else None,
            out_cache_loc=places,
            out_cache_loc_is_physical=True,
            encoder_lens=None,
            spec_info=None,
            mha_one_shot=False,
            attn_attend_prefix_cache=False,
        )
        batch.kv_loc_plan = self._made.kv_index_translator.own_plan(batch)
        return batch

    def _placed(
        self, new: dict[int, int], before: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        """Places for new tokens, which are written to the table."""
        allocator = self._made.token_to_kv_pool_allocator
        table = self._made.req_to_token_pool.req_to_token
        if allocator.page_size == 1:
            places = allocator.alloc(sum(new.values()))
        else:
            ends = zip(new, before.tolist(), strict=True)
            last = torch.tensor([int(table[row, at - 1]) if at else -1 for row, at in ends])
            places = allocator.alloc_extend(
                before, before, lengths, lengths, last, sum(new.values())
            )
        start = 0
        for row, number in new.items():
            at = self._lengths[row]
            table[row, at : at + number] = places[start : start + number].to(torch.int32)
            self._lengths[row] += number
            start += number
        return places
