"""A fetch for which the host has no memory is asked for again when there is some."""

from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any

import pytest
from restored_tree import KNOWN, Tree, allocate, begin, operation, patch_heads

from tokenflow_sgl.engine.restore import tail_fetch
from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.refused_fetches import MOST_TRIES
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.telemetry.prometheus import Recorder

STORED, THRESHOLD = 320, 64


class Host:
    """Its memory, and what SGLang would evict of it."""

    def __init__(self) -> None:
        self.free = self.unused = 0

    def available_size(self) -> int:
        return self.free

    def evict(self, tokens: int) -> int:
        gone = min(tokens, self.unused)
        self.unused -= gone
        self.free += gone
        return gone


@pytest.fixture
def some(monkeypatch) -> Any:
    """A request that waits, whose fetch was refused."""
    where = "tokenflow_sgl.engine.restore.restorable.undisturbed_reason"
    monkeypatch.setattr(where, lambda request: None)
    patch_heads(monkeypatch, lambda tree, request: 0)
    tree: Any = Tree()
    host = Host()
    tree.prefetch_threshold, tree.evict_host = THRESHOLD, host.evict
    tree.cache_controller = SimpleNamespace(
        mem_pool_device_allocator=None, mem_pool_host=host, page_size=tree.page_size
    )
    asked: list[tuple[Any, int]] = []
    record = RestorationRecord(Recorder(), None)
    all_ = Restorations(
        tree, 64, make_planner("auto"), record, lambda request, end: asked.append((request, end))
    )
    made = SimpleNamespace(all=all_, tree=tree, host=host, asked=asked)
    made.request = begin(all_, tree, "r")
    refuse(made)
    return made


def refuse(some: Any, handle: str = "r") -> None:
    """SGLang has no host memory for it, and drops the fetch."""
    fetch = some.tree.ongoing_prefetch.pop(handle).operation
    none = lambda *args, **kwargs: (None, 0)  # noqa: E731
    tail_fetch._allocate(none, some.tree.cache_controller, fetch, STORED)
    look(some)


def look(some: Any) -> None:
    """A pass begins."""
    some.all.begin_pass(LeaderFigures(5.0, **KNOWN), 0)


def fetch_begins(some: Any) -> None:
    """SGLang has begun one for it."""
    some.tree.ongoing_prefetch["r"] = SimpleNamespace(operation=operation(), host_indices=None)
    some.all.watch(some.request)


def test_without_memory_it_is_admitted_as_it_is(some) -> None:
    assert some.all.may_start("r") is None
    assert some.asked == []


@pytest.mark.parametrize(("free", "unused"), [(THRESHOLD, 0), (0, THRESHOLD), (16, THRESHOLD - 16)])
def test_with_memory_for_the_shortest_fetch_it_is_asked_for_again(some, free, unused) -> None:
    some.host.free, some.host.unused = free, unused
    some.all._refused._fetch_again = lambda request, end: (
        some.asked.append((request, end)),
        fetch_begins(some),
    )
    assert some.all.may_start("r") is False, "it waits for what the storage has"
    assert some.asked == [(some.request, STORED)]
    look(some)
    assert some.all.may_start("r") is False
    assert len(some.asked) == 1
    allocate(some.tree, "r")
    look(some)
    assert some.all.may_start("r") is True, "its head is computed"


@pytest.mark.parametrize(("free", "unused"), [(THRESHOLD - 1, 0), (15, THRESHOLD - 16)])
def test_a_little_memory_is_not_enough(some, free, unused) -> None:
    some.host.free, some.host.unused = free, unused
    assert some.all.may_start("r") is None
    assert some.asked == []


def test_where_nothing_comes_of_it_it_is_admitted(some) -> None:
    some.host.free = THRESHOLD
    assert some.all.may_start("r") is None
    assert len(some.asked) == 1
    assert some.all.may_start("r") is None
    assert len(some.asked) == 1, "it was not refused again"


def test_memory_is_looked_for_once_in_a_pass(some) -> None:
    """However many wait for it: the first one that admission looks at has it."""
    looks = []
    some.tree.evict_host = lambda tokens: looks.append(tokens) or 0
    other = begin(some.all, some.tree, "s")
    refuse(some, "s")
    for each in ("r", "s"):
        assert some.all.may_start(each) is None
    assert looks == [THRESHOLD]
    some.host.free = THRESHOLD
    assert some.all.may_start("s") is None
    assert some.asked == []
    look(some)
    for each in ("s", "r"):
        some.all.may_start(each)
    assert some.asked == [(other, STORED)]


def test_it_is_not_asked_for_without_end(some) -> None:
    some.host.free = THRESHOLD
    for tries in range(1, MOST_TRIES + 3):
        some.all.may_start("r")
        assert len(some.asked) == min(tries, MOST_TRIES)
        fetch_begins(some)
        refuse(some)


def test_what_sglang_asks_for_itself_is_not_asked_for(some) -> None:
    some.host.free = THRESHOLD
    fetch_begins(some)
    some.all.open.drop(some.request)
    assert some.all.may_start("r") is None
    assert some.asked == []


def test_one_that_was_admitted_is_forgotten(some) -> None:
    some.host.free = THRESHOLD
    some.request.prefix_len = some.request.extend_end = 0
    some.all.admitted(some.request)
    assert some.all.may_start("r") is None
    assert some.asked == []
    assert not some.all._refused._of


def test_one_that_was_aborted_in_the_queue_leaves_nothing(some) -> None:
    some.host.free = THRESHOLD
    del some.request
    gc.collect()
    assert not some.all._refused._of
    assert some.all.may_start("r") is None
    assert some.asked == []
