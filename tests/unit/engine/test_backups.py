"""Copies of streams where HiCache copies at evictions: which, what keeps them, and who waits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.sglang import Request
from sglang.srt.mem_cache.unified_cache.cache_action import BackupKV

from tokenflow_sgl.engine.kv import backups
from tokenflow_sgl.engine.kv.backups import HostKeeper, back_up, tokens_of, uncopied

LENGTH = 10


class Tree:
    """Paths of nodes of ten tokens, and a host that has room for some of their copies.

    A copy makes room by dropping the oldest one that is not locked.
    """

    is_write_back = True

    def __init__(self, room: int, **paths: list[int]) -> None:
        self.cache_controller: object | None = object()
        self.tree_core = self
        self.room, self.paths = room, paths
        self.copies: list[int] = []
        self.locks: list[int] = []
        self.made = 0

    def supports_mamba(self) -> bool:
        return False

    def collect_path_info(self, nodes: list[str]) -> Any:
        starts = range(0, 1000, LENGTH)
        return [
            [
                SimpleNamespace(node_id=each, path_start=start, path_end=start + LENGTH)
                for each, start in zip(self.paths[node], starts, strict=False)
            ]
            for node in nodes
        ]

    def is_backuped(self, node: int) -> bool:
        return node in self.copies

    def _execute_and_commit_kv_backup(self, action: BackupKV) -> int:
        (node,) = action.node_ids
        if len(self.copies) == self.room:
            old = next((each for each in self.copies if each not in self.locks), None)
            if old is None:
                return 0
            self.copies.remove(old)
        self.copies.append(node)
        self.made += 1
        return LENGTH

    def inc_host_lock_ref(self, node: int) -> Any:
        self.locks.append(node)
        return SimpleNamespace(node_id=node, to_dec_params=lambda: None)

    def dec_host_lock_ref(self, node: int, params: None) -> None:
        self.locks.remove(node)


def test_only_what_has_no_copy_is_copied() -> None:
    tree = Tree(9, a=[1, 2, 3], b=[1, 4])
    assert back_up(tree, "a") == 3 * LENGTH
    assert tokens_of(uncopied(tree, "b")) == LENGTH
    assert back_up(tree, "b") == LENGTH
    assert tree.copies == [1, 2, 3, 4]
    assert not tree.locks, "the host may drop what is on the device, too"


def test_a_path_makes_no_room_for_itself() -> None:
    """An inner node has lost its copy; those before and behind it still have theirs."""
    tree = Tree(3, a=[1, 2, 3], other=[9])
    tree.copies = [1, 3, 9]
    assert back_up(tree, "a") == 2 * LENGTH, "that of the last node went, and is made again"
    assert sorted(tree.copies) == [1, 2, 3]


def test_nothing_is_copied_behind_a_node_without_a_copy() -> None:
    tree = Tree(1, a=[1, 2, 3])
    assert back_up(tree, "a") == LENGTH
    assert tree.copies == [1]


def test_the_host_keeps_copies_of_paused_streams() -> None:
    tree = Tree(3, paused=[1, 2], runs=[3, 4])
    keeper, paused = HostKeeper(tree), Request()
    keeper.keep(paused, "paused")
    assert keeper.busy
    back_up(tree, "runs")
    assert tree.copies == [1, 2, 3], "the running stream's second one finds no room"
    keeper.give_up(paused)
    assert not keeper.busy
    assert not tree.locks
    back_up(tree, "runs")
    assert tree.copies == [2, 3, 4]
    keeper.give_up(paused)  # it ends


def test_older_copies_give_way_to_that_of_a_stream_that_pauses() -> None:
    tree = Tree(3, first=[1, 2], second=[3, 4])
    keeper = HostKeeper(tree)
    keeper.keep(Request(), "first")
    keeper.keep(Request(), "second")
    assert tree.copies == [2, 3, 4]
    assert tree.locks == [3, 4]
    keeper.clear()
    assert not tree.locks


@pytest.mark.parametrize("case", ["write through", "no host"])
def test_elsewhere_hicache_copies_by_itself(case) -> None:
    tree = Tree(9, a=[1])
    tree.is_write_back = case == "no host"
    if case == "no host":
        tree.cache_controller = None
    keeper = HostKeeper(tree)
    keeper.keep(Request(), "a")
    backups._released(None, tree, Request(last_node="a"), checkpointed=True)
    assert not tree.copies
    assert not keeper.busy


@pytest.mark.parametrize(("checkpointed", "copies"), [(True, [1, 2]), (False, [])])
def test_what_a_request_leaves_is_copied_before_it_is_evicted(checkpointed, copies) -> None:
    tree = Tree(9, a=[1, 2])
    backups._released(None, tree, Request(last_node="a"), checkpointed=checkpointed)
    assert tree.copies == copies


class Waiting:
    """A tree with copies under way, the nodes of some of which are not locked."""

    def __init__(self, *locks: object) -> None:
        self.tree_components = {"full": None}
        self.ongoing_write_through = {
            number: SimpleNamespace(lock_params=lock) for number, lock in enumerate(locks)
        }
        self.waited = 0

    def check(self, **how: Any) -> None:
        def waits(tree: Any, **_: Any) -> None:
            self.waited += 1

        backups._wait(waits, self, **how)


def test_sglang_waits_where_windows_are_evicted_too() -> None:
    tree = Waiting("locked")
    tree.tree_components["windows"] = None
    backups._evict(lambda self: self.check(write_back=True), tree)
    assert tree.waited == 1


def test_a_session_names_nodes_of_its_own() -> None:
    tree = Tree(9, a=[1, 2])
    backups._released(None, tree, Request(last_node=-1, session=object()), checkpointed=True)
    assert not tree.copies


@pytest.mark.parametrize(
    ("evicts", "locks", "how", "waited"),
    [
        (True, ["locked"], {"write_back": True}, 0),
        (True, ["locked", None], {"write_back": True}, 1),  # what is evicted is being copied
        (False, ["locked"], {"write_back": True}, 1),  # the engine pauses, say
        (True, ["locked"], {"finish_count": 1}, 1),  # not a wait
    ],
)
def test_an_eviction_waits_only_for_copies_of_what_it_evicts(evicts, locks, how, waited) -> None:
    tree = Waiting(*locks)

    def evict(self: Waiting) -> str:
        self.check(**how)
        return "evicted"

    if evicts:
        assert backups._evict(evict, tree) == "evicted"
    else:
        tree.check(**how)
    assert tree.waited == waited
