"""A host pool with room beside its copies keeps what SGLang's promises, under the same traffic."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.mem_cache.pool_host.base import HostKVCache

from tokenflow_sgl.engine.kv import host_room
from tokenflow_sgl.engine.kv.host_room import RoomyHostPool, check_room, with_room
from tokenflow_sgl.engine.refusal import UnsupportedError
from tokenflow_sgl_emulator.bare_host_pool import BareHostPool

TOKENS = 1024
PAGES = (1, 16)


def pools(page: int) -> tuple[HostKVCache, RoomyHostPool]:
    return BareHostPool(page, TOKENS), with_room(BareHostPool)(page, TOKENS)


def runs(*parts: torch.Tensor) -> int:
    return 1 + int((torch.cat(parts).diff() != 1).sum())


def asked(pool: RoomyHostPool, node: int, parent: int, tokens: int) -> torch.Tensor:
    with pool.continuing(node, parent):
        slots = pool.alloc(tokens)
    assert slots is not None
    return slots


@pytest.mark.parametrize("page", PAGES)
def test_random_traffic_has_the_same_free_counts_and_the_same_failures(page) -> None:
    chance, (stock, ours) = random.Random(page), pools(page)
    theirs, held, failures = {}, {}, 0
    for node in range(1, 800):
        if chance.random() < 0.6:
            tokens = chance.randrange(0, 12) * 16
            expected = stock.alloc(tokens)
            if chance.random() < 0.8:
                with ours.continuing(node, chance.randrange(max(node - 9, 0), node)):
                    found = ours.alloc(tokens)
            else:
                found = ours.alloc(tokens)
            assert (found is None) == (expected is None)
            if found is None:
                failures += 1
                continue
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            places = torch.arange(tokens) % page
            assert torch.equal(found % page, places), "whole pages, in order"
            theirs[node], held[node] = expected, found
        elif held:
            # One is freed with another, as SGLang's tree frees what it has evicted.
            two = chance.sample(sorted(held), min(2, len(held)))
            assert ours.free(torch.cat([held.pop(each) for each in two])) == stock.free(
                torch.cat([theirs.pop(each) for each in two])
            )
        assert stock.available_size() == ours.available_size() == len(ours.all_free_slots())
        used = [slot for slots in held.values() for slot in slots.tolist()]
        assert len(set(used)) == len(used)
        assert not set(used) & set(ours.all_free_slots().tolist())
        assert sorted(used) == torch.nonzero(ours.slot_used).flatten().tolist()
    assert failures > 5, "memory must have run short"
    ours.clear()
    assert ours.available_size() == TOKENS == len(ours.all_free_slots())
    assert not ours.slot_used.any()


@pytest.mark.parametrize("page", PAGES)
def test_a_copy_goes_on_beside_itself(page) -> None:
    stock, ours = pools(page)
    torn, whole = [], []
    for step in range(4):
        torn.append(stock.alloc(32))
        whole.append(asked(ours, step + 1, step, 32))
        for pool in (stock, ours):
            pool.alloc(32)
    assert (runs(*torn), runs(*whole)) == (4, 1)


def test_what_another_thread_asks_for_meanwhile_continues_nothing() -> None:
    _, ours = pools(1)
    first = asked(ours, 1, 0, 10)
    fetched = []
    with ours.continuing(2, 1):
        thread = threading.Thread(target=lambda: fetched.append(ours.alloc(10)))
        thread.start()
        thread.join()
        second = ours.alloc(10)
        third = ours.alloc(10)
    assert runs(first, second) == 1
    assert (runs(second, *fetched), runs(second, third)) == (2, 2)


def test_a_request_that_failed_may_come_again() -> None:
    """SGLang evicts between its two tries."""
    _, ours = pools(1)
    first, others = asked(ours, 1, 0, 10), ours.alloc(TOKENS - 10)
    with ours.continuing(2, 1):
        assert ours.alloc(20) is None
        ours.free(others[others > 9])
        assert runs(first, ours.alloc(20)) == 1


@pytest.mark.parametrize("page", PAGES)
def test_what_is_not_held_is_not_freed(page) -> None:
    _, ours = pools(page)
    slots = ours.alloc(32)
    ours.free(slots)
    with pytest.raises(AssertionError, match="Double-free"):
        ours.free(slots)
    with pytest.raises(AssertionError, match="multiple of the page size"):
        ours.alloc(page + 1 if page > 1 else 1.5)
    assert ours.available_size() == TOKENS
    if page > 1:
        slots = ours.alloc(32)
        with pytest.raises(AssertionError, match="Whole pages"):
            ours.free(slots[8:24])
        assert ours.available_size() == TOKENS - 32
    assert ours.free(torch.empty(0, dtype=torch.int64)) == 0


def test_the_hooks_say_which_copy_goes_on() -> None:
    ours = with_room(BareHostPool)(1, TOKENS)
    parents = {1: 0, 2: 0, 3: 1, 4: 2}

    def collect_path_info(nodes):
        return [[SimpleNamespace(parent_id=parents[node])] for node in nodes]

    tree = SimpleNamespace(
        tree_core=SimpleNamespace(collect_path_info=collect_path_info),
        cache_controller=SimpleNamespace(
            mem_pool_host=SimpleNamespace(anchor_entry=SimpleNamespace(host_pool=ours))
        ),
    )

    def backup(tree, node_id, device_value):
        return tree.cache_controller.mem_pool_host.anchor_entry.host_pool.alloc(len(device_value))

    one, two, after_one, after_two = (
        host_room._backed_up(backup, tree, node, range(10)) for node in parents
    )
    assert runs(one, after_one) == runs(two, after_two) == 1
    assert runs(one, two) == 2
    chosen, *rest = host_room._chosen((BareHostPool, "info", {}), "pool")
    assert issubclass(chosen, RoomyHostPool)
    assert issubclass(chosen, BareHostPool)
    assert rest == ["info", {}]


def test_pools_of_another_kind_are_refused() -> None:
    def tree(*made):
        entries = [SimpleNamespace(host_pool=each) for each in made]
        group = SimpleNamespace(entries=entries)
        return SimpleNamespace(cache_controller=SimpleNamespace(mem_pool_host=group))

    stock, ours = pools(1)
    check_room(tree(ours))
    check_room(SimpleNamespace(cache_controller=None))
    for made, shown in (
        ((stock,), "BareHostPool:"),
        ((ours, ours), "RoomyBareHostPool, RoomyBareHostPool:"),
    ):
        with pytest.raises(UnsupportedError, match=f"^--tokenflow-host-room .* {shown} only"):
            check_room(tree(*made))
