"""What the policy hears of SGLang's pools on the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from sglang.srt.mem_cache.allocator.swa import (
    PureSWATokenToKVPoolAllocator,
    SWATokenToKVPoolAllocator,
)
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from tokenflow_sgl.contract import Window
from tokenflow_sgl.engine.kv.device_pools import DevicePools
from tokenflow_sgl.engine.refusal import UnsupportedError


class Free:
    """A pool with so many free places."""

    def __init__(self, size: int) -> None:
        self._size = size

    def available_size(self) -> int:
        return self._size


def two_pools(kind: type = SWATokenToKVPoolAllocator, *, full: int = 1000, ring: bool = False):
    allocator = object.__new__(kind)
    allocator._size_full, allocator._size_swa, allocator._swa_req_ring = full, 200, ring
    allocator.full_attn_allocator, allocator.swa_attn_allocator = Free(400), Free(30)
    return allocator


def scheduler(allocator, *, windows: bool = False, states: bool = False, **given):
    tree = SimpleNamespace(
        supports_swa=lambda: windows,
        supports_mamba=lambda: states,
        evictable_size=lambda: 50,
        full_evictable_size=lambda: 70,
        swa_evictable_size=lambda: 5,
        swa_retain_window=24,
        sliding_window_size=24,  # before 0.5.23
    )
    return SimpleNamespace(
        token_to_kv_pool_allocator=allocator,
        tree_cache=tree,
        **{"chunked_prefill_size": 512, "page_size": 1, **given},
    )


def test_one_pool() -> None:
    pools = DevicePools(scheduler(Free(100)))
    assert (pools.kv_free, pools.window_free, pools.window_total) == (150, 0, 0)
    assert pools.window == Window()
    assert (pools.state_slots, pools.state_total) == (0, 0)


def test_two_pools_are_counted_each_for_itself(monkeypatch) -> None:
    monkeypatch.setenv("SGLANG_SWA_EVICTION_INTERVAL", "8")
    pools = DevicePools(scheduler(two_pools(), windows=True))
    assert (pools.kv_free, pools.window_free, pools.window_total) == (470, 35, 200)
    assert pools.window == Window(tokens=2 * 24 + 8, prefill=512)
    unlimited = scheduler(two_pools(), windows=True, chunked_prefill_size=None)
    assert DevicePools(unlimited).window.prefill == 200
    drafting = DevicePools(scheduler(two_pools(), windows=True), most=4)
    assert drafting.window.tokens == 2 * 24 + 8 + 3
    paged = scheduler(two_pools(), windows=True, page_size=16)
    assert DevicePools(paged).window.tokens == 64 + 16, "56, and its first page is not full"


@pytest.mark.parametrize(
    "allocator",
    [
        two_pools(ring=True),
        two_pools(full=0),
        two_pools(PureSWATokenToKVPoolAllocator),
        Free(100),
    ],
    ids=["a ring per request", "windows only", "windows only, by class", "another"],
)
def test_pools_of_another_kind_are_refused(allocator) -> None:
    with pytest.raises(UnsupportedError, match="two pools of fixed size"):
        DevicePools(scheduler(allocator, windows=True))


@pytest.mark.parametrize(
    ("slots", "tracked", "kept"),
    [(24, 0, 8), (36, 0, 12), (36, 2, 8), (46, 2, 10), (10, 0, 8)],
)
def test_states_of_running_streams_and_a_third_of_the_others_are_kept(slots, tracked, kept) -> None:
    rows = SimpleNamespace(
        mamba_allocator=SimpleNamespace(size=slots), mamba_initial_tracking_slots=tracked
    )
    allocator = object.__new__(TokenToKVPoolAllocator)
    made = scheduler(allocator, states=True, req_to_token_pool=rows, max_running_requests=8)
    pools = DevicePools(made)
    assert (pools.state_slots, pools.state_total) == (slots, kept)


def test_states_beside_another_kind_of_kv_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="one pool of KV and one of states"):
        DevicePools(scheduler(Free(100), states=True))
