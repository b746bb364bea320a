"""Places for recurrent states: copies to the host are waited for only where they hold the last."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult

from tokenflow_sgl.engine.kv.state_slots import _evict, copy_left_out, leave_state


class Tree:
    """Some places: free, in the tree, and in the tree and being copied."""

    def __init__(self, free: int, evictable: int, copied: int) -> None:
        self.free, self.evictable, self.copied = free, evictable, copied
        self.ongoing_write_through = dict.fromkeys(range(copied))
        self.waited = 0
        self.asked: list[EvictParams] = []
        self.req_to_token_pool = self.mamba_allocator = self

    def schedulable_available_size(self) -> int:
        return self.free

    def evict(self, params: EvictParams, **_: Any) -> EvictResult:
        self.asked.append(params)
        some = min(params.mamba_num, self.evictable)
        self.evictable -= some
        self.free += some
        return EvictResult(num_tokens_evicted=some)

    def writing_check(self, *, write_back: bool) -> None:
        assert write_back, "it waits"
        self.waited += 1
        self.evictable += self.copied
        self.copied = 0
        self.ongoing_write_through = {}


def make_room(tree: Tree, places: int, tokens: int = 0) -> Any:
    params = EvictParams(num_tokens=tokens, mamba_num=places)
    return _evict(lambda self, *args, **kw: self.evict(*args, **kw), tree, params)


@pytest.mark.parametrize(
    ("free", "evictable", "copied", "places", "waited"),
    [
        (0, 3, 2, 1, False),
        (1, 3, 2, 3, False),  # SGLang asks for what it lacks beyond those that are free
        (0, 0, 2, 1, True),
        (2, 1, 2, 2, True),
        (0, 0, 0, 1, False),  # there is nothing to wait for
        (0, 0, 5, 0, False),  # KV alone is asked for
    ],
)
def test_copies_are_waited_for_where_places_are_lacking(
    free, evictable, copied, places, waited
) -> None:
    tree = Tree(free, evictable, copied)
    make_room(tree, places, tokens=7)
    assert tree.waited == waited
    assert tree.free == min(free + places, free + evictable + copied)
    assert [asked.num_tokens for asked in tree.asked] == [7, 0][: 1 + waited]


@pytest.mark.parametrize(
    ("free", "evictable", "copied", "left"),
    [(1, 0, 0, True), (0, 1, 0, True), (0, 0, 1, True), (0, 0, 0, False)],
)
def test_a_state_is_left_if_a_place_can_be_made_for_it(free, evictable, copied, left) -> None:
    """SGLang's checkpoint would end the server where it finds none."""
    tree: Any = Tree(free, evictable, copied)
    left_at: list[int] = []
    tree.evict_for_alloc = lambda params: make_room(tree, params.mamba_num)
    tree.checkpoint = lambda request, *, up_to: left_at.append(up_to)
    request: Any = SimpleNamespace(
        refresh_fill_ids=lambda: None,
        owned_kv_len=lambda: 7,
        kv=SimpleNamespace(cache_protected_len=0),
    )
    leave_state(tree, request)
    assert left_at == [7] * left


class Left:
    """A tree in which a stream has just left a state at node 3."""

    is_write_back = False

    def __init__(self, *, kv_copied: bool = True, state_copied: bool = False) -> None:
        self.cache_controller: object | None = object()
        self.tree_core = self
        self.kv_copied, self.state_copied = kv_copied, state_copied
        self.done: list[object] = []

    def build_backup_spec(self, node: int) -> tuple[torch.Tensor, dict[str, list[str]]]:
        assert node == 3
        kv = torch.zeros(0 if self.kv_copied else 5)
        return kv, {} if self.state_copied else {"mamba": ["state"]}

    def backup_node_for_write_back(self, node: int) -> bool:
        self.done.append(node)
        return False  # as SGLang says where no KV was copied

    def writing_check(self, *, write_back: bool) -> None:
        assert write_back, "it waits"
        self.done.append("waited")


def test_a_state_that_was_left_out_is_copied_before_it_can_be_evicted() -> None:
    """As where another stream's KV, of which this one's is a part, is still being copied."""
    tree = Left()
    copy_left_out(tree, 3)
    assert tree.done == [3, "waited"]


@pytest.mark.parametrize("case", ["copied", "no room on the host", "written back", "no host"])
def test_other_states_are_left_to_sglang(case) -> None:
    tree = Left(state_copied=case == "copied", kv_copied=case != "no room on the host")
    if case == "written back":
        tree.is_write_back = True
    if case == "no host":
        tree.cache_controller = None
    copy_left_out(tree, 3)
    assert not tree.done
