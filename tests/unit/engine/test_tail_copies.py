"""Copies of a tail beside a controller that only notes them; SGLang's own allocators."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.allocator.page_interleave import PageInterleavePoolAllocator
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from tokenflow_sgl.engine.restore import tail_copies
from tokenflow_sgl.engine.restore.tail_copies import TailCopies, handing_over

PAGE, POOL, TAIL = 4, 64, 32
HOST = torch.arange(400, 400 + TAIL).flip(0).reshape(-1, PAGE).flip(1).reshape(-1)
"""Slots of the tail on the host, its last page first."""


class Stream:
    """Notes what waited for what."""

    def __init__(self, name: str, waited: list[tuple[str, str]]) -> None:
        self.name, self._waited = name, waited

    def wait_stream(self, other: Stream) -> None:
        self._waited.append((self.name, other.name))

    def wait_event(self, event: str) -> None:
        self._waited.append((self.name, event))

    def record_event(self) -> str:
        return f"event of {self.name}"


class Controller:
    """As much of SGLang's as copies need."""

    device, io_backend, transfer_layer_id_max = "cpu", "kernel", 2

    def __init__(self, allocator: Any) -> None:
        self.waited: list[tuple[str, str]] = []
        self.copied: dict[int, int] = {}
        self.broken = False
        self.devices: list[torch.device] = []
        self.mem_pool_device_allocator = allocator
        self.load_fence_stream = Stream("forward", self.waited)
        self.ack_load_queue: list[Any] = []
        self.l2_transfer_engine = SimpleNamespace(
            host_to_device_stream=Stream("copies", self.waited),
            submit_host_to_device=self._submit,
        )

    def _move_op_indices(self, operation: Any) -> tuple[Any, Any, None]:
        return operation.host_indices, operation.device_indices, None

    def _l2_load_transfers(self, host: Any, device: Any) -> list[tuple[Any, Any]]:
        return [(host, device)]

    def _num_tokens_by_pool(self, operation: Any) -> dict[str, int]:
        return {"kv": len(operation.device_indices)}

    def _transfer_num_bytes(self, operation: Any) -> int:
        return 8 * len(operation.device_indices)

    def _submit(self, transfers: list[tuple[Any, Any]], transfer_layer_id_max: int) -> None:
        if self.broken:
            raise RuntimeError("no copy engine")
        for host, device in transfers:
            self.copied |= dict(zip(device.tolist(), host.tolist(), strict=True))


class Tree:
    """Has something to evict, and loads what it is told to."""

    def __init__(self, controller: Controller) -> None:
        self.cache_controller = controller
        self.wants, self.node, self.device, self.evictable = HOST, 7, None, 0

    def evictable_size(self) -> int:
        return self.evictable

    def load_back(self, node_id: int, req: Any) -> None:
        copies = handing_over(self.cache_controller)
        assert copies is not None
        self.device = copies.load(self.wants, node_id)


@pytest.fixture(
    params=[PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator], ids=["pages", "tokens"]
)
def made(request, monkeypatch) -> tuple[TailCopies, Tree, Controller]:
    page = (PAGE,) if request.param is PagedTokenToKVPoolAllocator else ()
    allocator = request.param(POOL, *page, torch.float32, "cpu", None, False)
    controller = Controller(allocator)
    tree = Tree(controller)

    class Device:
        set_device = staticmethod(controller.devices.append)
        current_stream = staticmethod(lambda: Stream("schedule", controller.waited))
        stream = staticmethod(lambda stream: _Context())

    monkeypatch.setattr(tail_copies, "get_device_module", lambda: Device)
    return TailCopies(tree, SimpleNamespace(host_indices=HOST)), tree, controller


class _Context:
    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def free(controller: Controller) -> int:
    return int(controller.mem_pool_device_allocator.available_size())


def test_what_has_arrived_is_copied_as_far_as_there_is_memory(made) -> None:
    copies, _, controller = made
    copies.copy(8)
    assert not controller.copied, "there is no memory yet"
    copies.reserve(16, leave=0)
    assert (copies.held, free(controller)) == (16, POOL - 16)
    assert ("copies", "forward") in controller.waited, "the device may still write there"
    copies.copy(12)
    assert sorted(controller.copied.values()) == sorted(HOST[:12].tolist())
    copies.copy(TAIL)
    assert sorted(controller.copied.values()) == sorted(HOST[:16].tolist())
    copies.give_back()
    copies.give_back()
    assert (copies.held, free(controller)) == (0, POOL)
    assert controller.waited[-1] == ("schedule", "copies"), "the copies come before a new use"
    copies.copy(TAIL)
    copies.reserve(16, leave=0)
    assert (len(controller.copied), copies.held) == (16, 0), "given back is given back"


@pytest.mark.parametrize(("evictable", "taken"), [(7, 0), (8, 16)])
def test_memory_is_taken_only_where_enough_is_left(made, evictable, taken) -> None:
    copies, tree, controller = made
    controller.mem_pool_device_allocator.alloc(POOL - 24)
    tree.evictable = evictable
    copies.reserve(16, leave=16)
    assert copies.held == taken


def test_the_tree_gets_what_was_copied_and_the_rest_is_copied_then(made) -> None:
    copies, tree, controller = made
    copies.reserve(24, leave=0)
    copies.copy(16)
    # The tree lacks a page before the tail as well, and has one of the tail from elsewhere.
    before = torch.arange(40, 44)
    tree.wants = torch.cat((before, HOST[4:20]))
    assert copies.hand_over(SimpleNamespace(best_match_node=7)) == 12
    assert controller.copied.keys() >= set(tree.device.tolist())
    assert [controller.copied[slot] for slot in tree.device.tolist()] == tree.wants.tolist()
    assert (copies.held, free(controller)) == (0, POOL - len(tree.wants))
    (ack,) = controller.ack_load_queue
    assert (ack.node_ids, ack.num_tokens, ack.num_bytes) == ([7], 20, 160)
    assert ("schedule", ack.finish_event) in controller.waited


def test_without_memory_for_the_rest_sglang_loads_all_of_it_later(made) -> None:
    copies, tree, controller = made
    copies.reserve(16, leave=0)
    copies.copy(16)
    controller.mem_pool_device_allocator.alloc(free(controller))
    tree.evict_for_alloc = lambda params: None
    assert copies.hand_over(SimpleNamespace(best_match_node=7)) == 0
    assert tree.device is None
    assert not controller.ack_load_queue
    assert free(controller) == 16
    assert handing_over(controller) is None


def test_a_copy_that_fails_is_made_when_the_tail_joins(made) -> None:
    copies, tree, controller = made
    copies.reserve(TAIL, leave=0)
    controller.broken = True
    copies.copy(8)
    copies.copy(16)
    controller.broken = False
    assert copies.hand_over(SimpleNamespace(best_match_node=7)) == 0
    assert [controller.copied[slot] for slot in tree.device.tolist()] == HOST.tolist()


@pytest.mark.parametrize("backend", ["kernel", "direct"])
def test_copying_waits_for_nothing_on_the_host(made, backend, monkeypatch) -> None:
    """What would wait on a GPU: to bring an index to the host, or to the device otherwise."""
    copies, tree, controller = made
    controller.io_backend = backend
    copies.reserve(24, leave=0)

    def waits(*given: Any, **options: Any) -> Any:
        raise AssertionError("the host waits for the device")

    to = torch.Tensor.to
    monkeypatch.setattr(torch, "unique", waits)
    monkeypatch.setattr(torch.Tensor, "cpu", waits)
    monkeypatch.setattr(
        torch.Tensor,
        "to",
        lambda self, *given, **options: (
            to(self, *given, **options) if options.get("non_blocking") else waits()
        ),
    )
    copies.copy(16)
    device = copies._slots.device  # with its number; SGLang's controller says only "cuda"
    assert controller.devices == [device], "a thread begins with the first device"
    tree.wants = torch.cat((torch.arange(40, 44), HOST[4:20]))
    assert copies.hand_over(SimpleNamespace(best_match_node=7)) == 12
    assert free(controller) == POOL - len(tree.wants)


def test_device_pages_that_are_not_alike_are_left_to_sglang() -> None:
    allocator = PageInterleavePoolAllocator.__new__(PageInterleavePoolAllocator)
    copies = TailCopies(Tree(Controller(allocator)), SimpleNamespace(host_indices=HOST))
    copies.reserve(16, leave=0)
    assert copies.asked
    assert not copies.held
