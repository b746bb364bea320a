"""SGLang's pool over the arena, and allocators that tell it what is free."""

from __future__ import annotations

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    from tokenflow_sgl.engine.layerwise.layerwise_pool import LayerwisePool, telling

from tokenflow_sgl.engine.layerwise.layer_executor import StepRow
from tokenflow_sgl.engine.layerwise_settings import LayerwiseSettings
from tokenflow_sgl.engine.refusal import UnsupportedError

HEADS, WIDTH, LAYERS = 2, 4, 3


def pool(page: int = 4, tokens: int = 32, ratio: float = 2.0, planner: str = "even", **more):
    ours = type("Ours", (LayerwisePool,), {"settings": LayerwiseSettings(planner, ratio)})
    given = {
        "page_size": page,
        "dtype": torch.float32,
        "head_num": HEADS,
        "head_dim": WIDTH,
        "layer_num": LAYERS,
        "device": "cpu",
        "enable_memory_saver": False,
    }
    return ours(tokens, **{**given, **more})


def allocator(of, page: int = 4):
    plain = (
        TokenToKVPoolAllocator(of.size, of.dtype, "cpu", of, need_sort=False)
        if page == 1
        else PagedTokenToKVPoolAllocator(of.size, page, of.dtype, "cpu", of, need_sort=False)
    )
    return telling(plain)


class AllButTheFirst:
    def layouts(self, streams):
        return [(2, 3)] * streams.rows.size


def test_the_device_holds_a_share_of_the_tokens() -> None:
    made = pool()
    whole = 2 * 32 * LAYERS * HEADS * WIDTH * 4  # keys and values of four bytes
    beside = 2 * 4 * HEADS * WIDTH * 4  # of the cell that is no page's
    assert sum(made.get_kv_size_bytes()) == whole / 2 + beside


@pytest.mark.parametrize("page", [1, 4])
def test_tokens_are_kept_layer_by_layer_whatever_lies_on_the_host(page) -> None:
    made = pool(page, planner=f"{__name__}:AllButTheFirst")
    hand_out = allocator(made, page)
    places = hand_out.alloc(8)
    executor = made.executor
    written = torch.randn(LAYERS, 8, HEADS, WIDTH)
    for done in (4, 8):
        executor.begin([StepRow(1, places[:done].numpy(), 4)])
        for layer in range(LAYERS):
            executor.before(layer)
            own = SimpleNamespace(layer_id=layer)
            new, content = slice(done - 4, done), written[layer]
            made.set_kv_buffer(own, places[new], content[new], -content[new])
            at = made.where(layer, places[:done])
            with made.read_by_attention():
                assert torch.equal(made.get_key_buffer(layer)[at], content[:done])
                assert torch.equal(made.get_value_buffer(layer)[at], -content[:done])
            executor.after(layer)
    assert executor.places.host.used == 2 * 8 // page
    assert executor.fetched == 2 * 4 // page
    hand_out.free(places)
    assert executor.places.device.used == executor.places.host.used == 0
    assert hand_out.available_size() == 32


@pytest.mark.parametrize("page", [1, 4])
def test_pages_are_free_when_sglangs_group_of_frees_ends(page) -> None:
    made = pool(page)
    hand_out = allocator(made, page)
    places = hand_out.alloc(8)
    made.executor.begin([StepRow(1, places.numpy(), 8)])
    hand_out.free_group_begin()
    hand_out.free_segment(places, start_pos=0)
    assert made.executor.places.alive.any()
    hand_out.free_group_end()
    assert not made.executor.places.alive.any()


def test_all_are_free_when_the_caches_are_flushed() -> None:
    made = pool()
    hand_out = allocator(made)
    made.executor.begin([StepRow(1, hand_out.alloc(8).numpy(), 8)])
    hand_out.clear()
    assert made.executor.places.device.used == 0


def test_an_allocator_of_another_pool_stays_as_it_is() -> None:
    plain = MHATokenToKVPool(32, 1, torch.float32, HEADS, WIDTH, LAYERS, "cpu", False)
    made = TokenToKVPoolAllocator(32, torch.float32, "cpu", plain, need_sort=False)
    assert telling(made) is made


def test_what_reads_beside_the_attention_is_told() -> None:
    for read in (MHATokenToKVPool.get_kv_buffer, LayerwisePool.get_value_buffer):
        with pytest.raises(RuntimeError, match="reads KV beside SGLang's attention"):
            read(pool(), 0)


def test_more_tokens_than_staging_allows_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"ratio is 3\.5 and the model has 3 layers: "):
        pool(ratio=3.5)
    pool(ratio=3.0)


def test_an_allocator_of_another_kind_is_refused() -> None:
    made = pool(1)
    plain = TokenToKVPoolAllocator(32, torch.float32, "cpu", made, need_sort=True)
    with pytest.raises(UnsupportedError, match="TokenToKVPoolAllocator: only its allocators"):
        telling(plain)


def test_a_page_that_is_not_alive_is_in_cell_0() -> None:
    assert pool().where(1, torch.tensor([0, 3])).tolist() == [0, 3]
    assert np.array_equal(pool().executor.places.table, np.zeros((LAYERS, 9)))
