"""Fetches layer by layer beside a controller that only notes what it is told."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from restored_tree import Operation
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
from sglang.srt.mem_cache.hicache_storage import HiCacheFile
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore import layer_fetch
from tokenflow_sgl.engine.restore.fetched_layer_copies import FetchedLayerCopies
from tokenflow_sgl.engine.restore.layer_fetch import (
    LayerFetch,
    LayerMemory,
    by_layers_from_here,
    take_layers,
)
from tokenflow_sgl.engine.restore.layer_reads import layers_of_page, read_layers, reads_layers
from tokenflow_sgl.engine.restore.tail_fetch import tail_of

PAGE, LAYERS, TOKENS = 4, 8, 64


def operation() -> Any:
    return Operation(
        host_indices=torch.arange(TOKENS),
        hash_value=[str(page) for page in range(TOKENS // PAGE)],
        is_terminated=lambda: False,
        request_id="r",
        handle="r",
        storage_start=0,
        completed_tokens=0,
    )


class Tree:
    """Keeps what it is given back."""

    page_size = PAGE

    def __init__(self) -> None:
        self.ongoing_prefetch: dict[str, Any] = {}
        self.released: list[Any] = []
        self.cache_controller = SimpleNamespace(
            append_host_mem_release=self.released.append,
            prefetch_sync_queue=queue.Queue(),
            ack_prefetch_queue=queue.Queue(),
            mem_pool_device_allocator=object.__new__(TokenToKVPoolAllocator),
        )


def made(expected: float = 0.0) -> tuple[Tree, Any, LayerFetch]:
    tree, op = Tree(), operation()
    copies = FetchedLayerCopies(tree, op, LAYERS)
    fetch = LayerFetch(LAYERS, TOKENS, PAGE, LatestRate(), copies, expected)
    by_layers_from_here(op, fetch)
    return tree, op, fetch


@pytest.fixture
def reads(monkeypatch) -> list[range]:
    """The layers that were read."""
    read: list[range] = []
    monkeypatch.setattr(
        layer_fetch, "read_layers", lambda controller, keys, slots, some: read.append(some) or True
    )
    return read


def reports(tree: Tree) -> list[int]:
    return [each.completed_tokens for each in tree.cache_controller.prefetch_sync_queue.queue]


def test_it_begins_with_the_last_layer_and_ends_where_layers_are_computed(reads) -> None:
    tree, op, fetch = made()
    fetch._at_once, fetch.first = 3, 1
    fetch.fetch(tree.cache_controller, op)
    assert reads == [range(5, 8), range(2, 5), range(1, 2)]
    assert reports(tree) == [3, 6, 7], "as many on all ranks"


def test_all_ranks_report_as_often_whatever_fails(monkeypatch) -> None:
    tree, op, fetch = made()
    fetch._at_once = 2
    asked: list[range] = []

    def fail(controller: Any, keys: Any, slots: Any, some: range) -> bool:
        asked.append(some)
        if len(asked) == 2:
            raise ConnectionError("gone")
        return True

    monkeypatch.setattr(layer_fetch, "read_layers", fail)
    fetch.fetch(tree.cache_controller, op)
    assert reports(tree) == [2, 2, 2, 2]
    assert len(asked) == 2, "nothing is read behind a gap"


def test_a_fetch_that_only_measures_the_link_brings_one_batch(reads) -> None:
    tree, op, fetch = made()
    fetch._at_once, fetch.enough = 2, 1
    fetch.fetch(tree.cache_controller, op)
    assert len(reads) == 1
    assert reports(tree) == [2, 2, 2, 2]


def test_batches_are_as_long_as_the_link_needs_for_some_milliseconds() -> None:
    slow, fast = made(expected=1000.0)[2], made(expected=1e7)[2]
    assert fast._at_once >= slow._at_once >= 1
    assert fast.tokens_of(LAYERS) == TOKENS
    assert fast.left == TOKENS
    fast.first, fast.landed = 2, 3
    assert fast.left == TOKENS * 3 // LAYERS


def test_for_sglang_no_token_has_arrived() -> None:
    tree, op, fetch = made()
    acknowledged = tree.cache_controller.ack_prefetch_queue
    ours = SimpleNamespace(operation=op, completed_tokens=3)
    other = SimpleNamespace(operation=operation(), completed_tokens=16)
    for report in (ours, other):
        acknowledged.put(report)
    take_layers(tree.cache_controller, 1)
    assert (fetch.landed, ours.completed_tokens) == (3, None)
    assert other.completed_tokens == 16
    take_layers(tree.cache_controller, 2)
    assert other.completed_tokens == 16, "one that is fetched from the tail stays what it is"


def test_host_memory_goes_back_when_nothing_uses_it() -> None:
    tree, op, fetch = made()
    memory = LayerMemory(tree)
    memory.keep(op)
    assert op.ack_releases_incomplete_host_indices is False
    tree.ongoing_prefetch["r"] = SimpleNamespace(operation=op)
    assert memory.unused({op}) == 0, "it is fetched"
    del tree.ongoing_prefetch["r"]
    assert memory.unused({op}) == 0, "SGLang's threads have not ended it"
    assert memory.unused(set()) == 0, "it may still be copied"
    fetch.by_layers.give_back()
    fetch.by_layers._last = SimpleNamespace(query=lambda: False)
    assert memory.unused(set()) == 0, "the device reads it"
    fetch.by_layers._last = None
    assert memory.unused(set()) == 1
    memory.release(0)
    assert memory, "another rank's device still reads it"
    memory.release(1)
    assert not memory
    assert len(tree.released) == 1


def test_what_the_tree_has_taken_does_not_go_back() -> None:
    tree, op, fetch = made()
    memory = LayerMemory(tree)
    memory.keep(op)
    fetch.taken = True
    memory.release(memory.unused(set()))
    assert not memory
    assert tree.released == []
    assert tail_of(op) is fetch


@pytest.mark.parametrize("layout", ["layer_first", "page_first_direct"])
def test_layers_are_read_from_sglangs_files(tmp_path, monkeypatch, layout) -> None:
    pages = 3
    shapes = {
        "layer_first": (2, LAYERS, pages * PAGE, 2, 8),
        "page_first_direct": (2, pages, LAYERS, PAGE, 2, 8),
    }
    pool = object.__new__(MHATokenToKVPoolHost)
    vars(pool).update(
        layout=layout, page_size=PAGE, layer_num=LAYERS, head_dim=8, v_head_dim=8, head_num=2
    )
    pool.kv_buffer = torch.randn(shapes[layout], dtype=torch.bfloat16)
    written = pool.kv_buffer.clone()
    storage = object.__new__(HiCacheFile)
    storage.file_path, storage.config_suffix = str(tmp_path), "_tiny"
    keys = ["a", "b", "c"]
    for key, slot in zip(keys, range(0, pages * PAGE, PAGE), strict=True):
        flat = pool.get_data_page(slot).contiguous().view(torch.uint8).numpy()
        (tmp_path / f"{key}_tiny.bin").write_bytes(flat.tobytes())
    controller = SimpleNamespace(storage_backend=storage, storage_host_pool=pool)
    assert reads_layers(controller)

    pool.kv_buffer.zero_()
    # Pages in an order of their own, as fetches from the tail have them.
    slots = torch.arange(pages * PAGE).reshape(-1, PAGE).flip(0).reshape(-1)
    assert read_layers(controller, keys[::-1], slots, range(3, 6))
    found = pool.kv_buffer.clone()
    pool.kv_buffer.copy_(written)
    for slot in range(0, pages * PAGE, PAGE):
        for layer in range(LAYERS):
            there = layers_of_page(pool, slot, range(layer, layer + 1)).clone()
            pool.kv_buffer, kept = found, pool.kv_buffer
            read = layers_of_page(pool, slot, range(layer, layer + 1))
            assert bool(torch.equal(read, there)) == (3 <= layer < 6)
            pool.kv_buffer = kept

    assert not read_layers(controller, ["gone"], slots[:PAGE], range(1))
    (tmp_path / "a_tiny.bin").write_bytes(b"short")
    assert not read_layers(controller, ["a"], slots[:PAGE], range(1))


def test_other_layouts_and_storages_are_not_read_by_layers() -> None:
    pool = object.__new__(MHATokenToKVPoolHost)
    vars(pool).update(layout="page_first", head_dim=8, v_head_dim=8)
    by_layers = SimpleNamespace(batch_get_layers=None)
    assert not reads_layers(SimpleNamespace(storage_backend=by_layers, storage_host_pool=pool))
    pool.layout = "layer_first"
    assert reads_layers(SimpleNamespace(storage_backend=by_layers, storage_host_pool=pool))
    other = SimpleNamespace()
    assert not reads_layers(SimpleNamespace(storage_backend=other, storage_host_pool=pool))
    pool.v_head_dim = 4
    assert not reads_layers(SimpleNamespace(storage_backend=by_layers, storage_host_pool=pool))
