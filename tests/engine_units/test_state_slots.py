"""Places for recurrent states: copies to the host are waited for only where they hold the last."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, EvictResult

from tokenflow_sgl.engine.kv.state_slots import _evict


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
