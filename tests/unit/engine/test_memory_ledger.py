"""Every way in which a page can be in a wrong hand is named."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tokenflow_sgl.engine.kv import memory_ledger
from tokenflow_sgl.engine.kv.memory_ledger import MemoryLedger, MemoryLedgerError


def places(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


class World:
    """Eight pages of one token on the device, six slots on the host, and one request.

    The tree has pages 1 and 2, which the request reads, and host slots 0 and 1. The request alone
    has 3 and 4; 5 is lent; the others are free.
    """

    def __init__(self) -> None:
        self.tree_values = places(1, 2)
        self.host_values: torch.Tensor | None = places(0, 1)
        self.free = places(6, 7, 8)
        self.lent = [places(5)]
        self.row = places(1, 2, 3, 4)
        self.engine = SimpleNamespace()
        used = torch.tensor([True, True, False, False, False, False])
        self.pool = SimpleNamespace(
            page_size=1,
            lock=threading.RLock(),
            free_slots=places(2, 3),
            release_slots=[places(4, 5)],
            slot_used=used,
        )
        self.controller = SimpleNamespace(
            l2_transfer_engine=self.engine,
            ack_write_queue=[],
            ack_load_queue=[],
            write_queue=[],
            load_queue=[],
            mem_pool_host=self.pool,
        )
        self.fetches: dict[str, Any] = {}

    @property
    def root_node(self) -> Any:
        if self.host_values is None:
            raise NotImplementedError
        kind = memory_ledger.ComponentType.FULL
        child = SimpleNamespace(
            children={}, component_data={kind: SimpleNamespace(host_value=self.host_values)}
        )
        return SimpleNamespace(
            children={0: child}, component_data={kind: SimpleNamespace(host_value=None)}
        )

    def submit(self, device: torch.Tensor, host: torch.Tensor) -> None:
        """A copy is under way."""
        event = object()
        own = SimpleNamespace(device_indices=device, host_indices=host, host_pool=self.pool)
        # A draft model's have the same places; windows' have places of their own.
        windows = SimpleNamespace(
            device_indices=places(90), host_indices=places(91), host_pool=object()
        )
        completion = SimpleNamespace(finish_event=event)
        transfers = [windows, own, own]
        assert memory_ledger._submitted(completion, self.engine, transfers) is completion
        self.controller.ack_write_queue.append(SimpleNamespace(finish_event=event))

    def check(self) -> None:
        kv = SimpleNamespace(
            req_pool_idx=0, kv_allocated_len=4, cache_protected_len=2, holds_kv=True
        )
        request = SimpleNamespace(kv=kv, beam_group=None)
        tree = SimpleNamespace(
            session_records=dict,
            cache_controller=self.controller,
            all_values_flatten=lambda: self.tree_values,
            ongoing_prefetch=self.fetches,
            enable_storage=bool(self.fetches),
            tree_core=self,
        )
        allocator = SimpleNamespace(size=8, page_size=1, get_all_free_pages=lambda: self.free)
        rows = SimpleNamespace(req_to_token=self.row[None, :])
        MemoryLedger(tree, allocator, rows, lambda: self.lent).check([request])


@pytest.fixture
def world() -> World:
    return World()


def test_all_is_well(world) -> None:
    world.check()
    world.submit(places(1, 2), places(0, 1))
    world.check()
    world.host_values = None  # a tree that does not say
    world.check()


def wrong(world: World, said: str) -> None:
    with pytest.raises(MemoryLedgerError, match=said):
        world.check()


def test_a_page_in_two_hands(world) -> None:
    world.free = places(6, 7, 4)
    wrong(world, r"pages 2 \(4, 8\).*4 is in free and requests; free: 3")


def test_a_page_that_is_lost(world) -> None:
    world.lent = []
    wrong(world, r"device's pages 1 \(5\) .*5 is in none")


def test_a_page_that_is_not_there(world) -> None:
    world.free = places(6, 7, 8, 9)
    wrong(world, r"pages 1 \(9\)")


def test_a_request_reads_what_the_tree_has_not(world) -> None:
    world.row = places(1, 6, 2, 3)
    world.tree_values = places(1, 4)
    world.free = places(6, 7, 8)
    wrong(world, r"requests read 1 \(6\)")


def test_a_source_is_freed_under_its_copy(world) -> None:
    world.submit(places(1, 2), places(0, 1))
    world.tree_values, world.free = places(1), places(6, 7, 8, 2)
    world.row = places(1, 1, 3, 4)
    wrong(world, r"a copy uses 1 \(2\) of the device, which the prefix tree does not have")


def test_two_copies_have_a_page(world) -> None:
    world.submit(places(1), places(0))
    world.controller.load_queue.append(
        SimpleNamespace(device_indices=places(1), host_indices=places(1))
    )
    wrong(world, r"two copies use 1 \(1\) of the device")


def test_two_copies_have_a_slot_of_the_host(world) -> None:
    world.submit(places(1), places(0))
    world.submit(places(2), places(0))
    wrong(world, r"two copies use 1 \(0\) of the host")


def test_a_slot_of_the_host_is_freed_under_its_copy(world) -> None:
    world.submit(places(1), places(0))
    world.host_values = None
    world.pool.slot_used[0] = False
    world.pool.release_slots.append(places(0))
    wrong(world, r"a copy uses 1 \(0\) of the host, which are not in use")


def test_a_slot_of_the_host_is_lost(world) -> None:
    world.host_values = places(0)
    wrong(world, r"host's pages 1 \(1\) .*1 is in none")


def test_the_hosts_free_slots_are_in_use(world) -> None:
    world.host_values = None
    world.pool.free_slots = places(1, 2, 3)
    wrong(world, r"1 is in free and in use")


def test_fetches_have_slots_of_their_own(world) -> None:
    for name in ("one", "other"):
        world.fetches[name] = SimpleNamespace(
            host_indices=places(1, 4), operation=SimpleNamespace(completed_tokens=1)
        )
    wrong(world, r"two copies use 1 \(1\) of the host")
    del world.fetches["one"]
    world.check()
