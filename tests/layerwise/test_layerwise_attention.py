"""Attention over the arena gives the numbers of attention over SGLang's own pool, bit for bit."""

from __future__ import annotations

import random
import warnings
from types import SimpleNamespace

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.layers.attention import attention_registry
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    from tokenflow_sgl.engine.layerwise.layerwise_attention import LayerwiseAttention
    from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool, telling
    from tokenflow_sgl_emulator.attention import ReferenceAttention

from layerwise_body import RandomLayouts

from tokenflow_sgl.engine.layerwise.layerwise_settings import LayerwiseSettings
from tokenflow_sgl.engine.unsupported import UnsupportedError

LAYERS, HEADS, KV_HEADS, WIDTH = 3, 4, 2, 8
TOKENS, ROWS = 96, 4


class AnyLayers(RandomLayouts):
    """Made without arguments."""

    def __init__(self) -> None:
        super().__init__(random.Random(5))


@pytest.fixture(autouse=True)
def backends(monkeypatch):
    monkeypatch.setitem(attention_registry.ATTENTION_BACKENDS, "reference", ReferenceAttention)
    monkeypatch.setitem(attention_registry.ATTENTION_BACKENDS, "other", lambda _: SimpleNamespace())


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
    return SimpleNamespace(
        device="cpu",
        token_to_kv_pool=pool,
        token_to_kv_pool_allocator=telling(plain),
        req_to_token_pool=SimpleNamespace(
            req_to_token=table,
            free_slots=[],
            req_generation=torch.ones(ROWS + 1, dtype=torch.int64),
        ),
    )


def ours(planner: str = f"{__name__}:AnyLayers") -> type:
    return type("Ours", (LayerwisePool,), {"settings": LayerwiseSettings(planner, 3.0)})


class Server:
    """Rows of one runner, and steps of them."""

    def __init__(self, made: SimpleNamespace, backend) -> None:
        self._made, self._backend = made, backend
        self._lengths = [0] * (ROWS + 1)

    def step(self, new: dict[int, int], numbers: torch.Generator) -> list[torch.Tensor]:
        """Each layer's output; `numbers` makes queries, keys and values."""
        allocator, table = self._made.token_to_kv_pool_allocator, self._made.req_to_token_pool
        before = torch.tensor([self._lengths[row] for row in new])
        lengths = before + torch.tensor([*new.values()])
        rows = torch.tensor([*new])
        if allocator.page_size == 1:
            places = allocator.alloc(sum(new.values()))
        else:
            last = torch.tensor(
                [
                    int(table.req_to_token[r, n - 1]) if n else -1
                    for r, n in zip(rows, before, strict=True)
                ]
            )
            places = allocator.alloc_extend(before, before, lengths, lengths, last, len_of(new))
        start = 0
        for row, number in new.items():
            at = self._lengths[row]
            own = places[start : start + number].to(torch.int32)
            table.req_to_token[row, at : at + number] = own
            self._lengths[row] += number
            start += number
        decode = set(new.values()) == {1}
        batch = SimpleNamespace(
            forward_mode=ForwardMode.DECODE if decode else ForwardMode.EXTEND,
            req_pool_indices=rows,
            seq_lens=lengths,
            extend_seq_lens=None if decode else torch.tensor([*new.values()]),
            extend_prefix_lens=None if decode else before,
            out_cache_loc=places,
            encoder_lens=None,
        )
        self._backend.init_forward_metadata(batch)
        outputs = []
        for number in range(LAYERS):
            q, k, v = (
                torch.randn(len(places), heads * WIDTH, generator=numbers)
                for heads in (HEADS, KV_HEADS, KV_HEADS)
            )
            k, v = (each.view(-1, KV_HEADS, WIDTH) for each in (k, v))
            forward = self._backend.forward_decode if decode else self._backend.forward_extend
            outputs.append(forward(q, k, v, layer(number), batch))
        return outputs

    def end(self, row: int) -> None:
        own = self._made.req_to_token_pool.req_to_token[row, : self._lengths[row]].long()
        self._made.token_to_kv_pool_allocator.free(own)
        self._lengths[row] = 0


def len_of(new: dict[int, int]) -> int:
    return sum(new.values())


def layer(number: int) -> SimpleNamespace:
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
    )


@pytest.mark.parametrize("page", [1, 4])
def test_every_output_is_the_same(page) -> None:
    plain, placed = runner(page, MHATokenToKVPool), runner(page, ours())
    servers = [
        Server(plain, ReferenceAttention(plain)),
        Server(placed, LayerwiseAttention(placed, "reference")),
    ]
    numbers = [torch.Generator().manual_seed(1) for _ in servers]
    steps = [
        *({1: 9}, {1: 7, 2: 5}, {1: 1, 2: 1}, {3: 12}, {1: 1, 2: 6, 3: 1}, {1: 1, 2: 1, 3: 1}),
        *(3, {1: 1, 2: 1}, {3: 11, 4: 2}, {1: 1, 2: 1, 3: 1, 4: 1}, {1: 1, 2: 1, 3: 1, 4: 1}),
    ]
    for step in steps:
        if isinstance(step, int):
            for server in servers:
                server.end(step)
            continue
        expected, found = (
            server.step(step, each) for server, each in zip(servers, numbers, strict=True)
        )
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a, b)
    executor = placed.token_to_kv_pool.executor
    assert executor.switches > 5
    assert executor.fetched > 0
    for row in (1, 2, 3, 4):
        servers[1].end(row)
    assert executor.places.device.used == executor.places.host.used == 0


def test_what_models_ask_a_backend_for_is_there() -> None:
    made = runner(1, ours())
    backend = LayerwiseAttention(made, "reference")
    assert backend.token_to_kv_pool is made.token_to_kv_pool
    assert backend.req_to_token_pool is made.req_to_token_pool


def test_another_pool_or_allocator_ends_the_start() -> None:
    plain = runner(1, MHATokenToKVPool)
    with pytest.raises(RuntimeError, match="could not put its LayerwisePool in place"):
        LayerwiseAttention(plain, "reference")
    made = runner(1, ours())
    made.token_to_kv_pool_allocator = plain.token_to_kv_pool_allocator
    with pytest.raises(RuntimeError, match="could not put its TellingAllocator in place"):
        LayerwiseAttention(made, "reference")


def test_a_backend_that_reads_in_another_way_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="--attention-backend other: only"):
        LayerwiseAttention(runner(1, ours()), "other")
