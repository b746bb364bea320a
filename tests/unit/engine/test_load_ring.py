"""Prefetches: what is started, which steps wait for it, when it has landed."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import pytest

from tokenflow_sgl.engine.kv import load_ring
from tokenflow_sgl.engine.kv.load_ring import Loader, shares
from tokenflow_sgl.lifecycle import Missing


class Request(SimpleNamespace):
    """Stands in for SGLang's."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def request(prompt, output=(), **match):
    found = {"device_prefix_len": 0, "host_hit_length": 0, "best_match_node": 7, **match}
    found["last_device_node"] = 6
    return Request(
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        match=SimpleNamespace(**found),
    )


def ack(start: object = "start", finish: object = "finish") -> Any:
    """SGLang's, of a copy that has not been looked after."""
    return SimpleNamespace(start_event=start, finish_event=finish)


class Tree:
    """A prefix tree that loads what it is asked for."""

    def __init__(self, unacknowledged=0, refuses=False):
        self.cache_controller = SimpleNamespace(ack_load_queue=[ack()] * unacknowledged)
        self.ongoing_load_back = {}
        self.refuses = refuses
        self.acknowledged = []
        self.locked = []

    def supports_mamba(self):
        return False

    def writing_check(self, write_back):
        assert write_back
        self.acknowledged.append("every write")

    def loading_check(self, finish_count):
        self.acknowledged.append(finish_count)

    def init_load_back(self, params):
        if self.refuses:
            return 0, 1
        self.ongoing_load_back[params.best_match_node] = None
        return params.host_hit_length, params.best_match_node

    def ready_to_load_host_cache(self):
        return 2

    def evictable_size(self):
        return 50 - 5 * len(self.locked)

    def lock(self, node):
        self.locked.append(node)
        return node

    def unlock(self, lock):
        if lock is not None:
            self.locked.remove(lock)


def match(request, tree, max_prefix_len=None):
    """What is found of a request, or of its first `max_prefix_len` tokens, in a node of its own."""
    found = request.match
    if max_prefix_len is None:
        return found
    tokens = max_prefix_len - found.device_prefix_len
    node = f"{found.best_match_node} up to {max_prefix_len}"
    return SimpleNamespace(**{**vars(found), "host_hit_length": tokens, "best_match_node": node})


def lands(tree):
    tree.ongoing_load_back.clear()


@pytest.fixture(autouse=True)
def matching(monkeypatch):
    monkeypatch.setattr(load_ring, "match_kv_cache", match)


PAUSED = request([1, 2, 3], [4, 5, 6], device_prefix_len=2, host_hit_length=3)


@pytest.mark.parametrize(
    ("other", "sharing"),
    [
        (request([1, 2, 3, 9]), True),  # the third token is the first that is loaded
        (request([1, 2, 9]), False),
        (request([1, 2], [3]), True),
        (request([1, 2]), True),  # may go on like it
        (request([9]), False),
    ],
)
def test_which_streams_share_what_is_loaded(other, sharing):
    assert shares(other, PAUSED, resident=2) is sharing
    assert shares(PAUSED, other, resident=2) is sharing


def test_a_load_from_start_to_end():
    tree = Tree()
    loader = Loader(tree)
    assert loader.missing(PAUSED) == Missing(3, 5)
    assert tree.locked == []
    assert loader.load(PAUSED, [request([9])], 3) == 3
    assert loader.request is PAUSED
    assert PAUSED in loader
    assert loader.landed() is None
    lands(tree)
    assert loader.landed() is PAUSED
    assert loader.landed() is None
    assert loader.request is None
    assert PAUSED not in loader
    assert tree.locked == []


def test_a_chunk_is_kept_until_the_rest_is_there():
    tree = Tree()
    loader = Loader(tree)
    wanted = request(range(9), device_prefix_len=2, host_hit_length=7)
    assert loader.load(wanted, [], 4) == 4
    assert list(tree.ongoing_load_back) == tree.locked == ["7 up to 6"]
    lands(tree)
    assert loader.landed() is wanted
    assert wanted in loader
    assert loader.busy
    assert not loader.taken
    wanted.match.device_prefix_len, wanted.match.host_hit_length = 6, 3
    assert loader.load(wanted, [], 2) == 2
    assert tree.locked == ["7 up to 8"], "with all that comes before it"
    lands(tree)
    loader.landed()
    wanted.match.device_prefix_len, wanted.match.host_hit_length = 8, 1
    assert loader.load(wanted, [], 1) == 1
    assert list(tree.ongoing_load_back) == [7]
    assert tree.locked == [], "SGLang locks it until it has landed"
    lands(tree)
    assert loader.landed() is wanted
    assert not loader.busy


def test_what_is_given_up_may_be_evicted():
    tree = Tree()
    loader = Loader(tree)
    wanted = request(range(9), host_hit_length=9)
    loader.load(wanted, [], 4)
    loader.give_up(wanted)
    loader.give_up(wanted)
    assert tree.locked == []
    assert loader.request is wanted, "it is still on its way"
    lands(tree)
    assert loader.landed() is wanted
    assert not loader.busy


def test_a_pause_waits_for_all_copies_and_acknowledges_them():
    tree = Tree()
    loader = Loader(tree)
    assert loader.settle() is None
    loader.load(PAUSED, [], 3)
    tree.cache_controller.ack_load_queue = [None, None]
    tree.acknowledged.clear()
    assert loader.settle() is PAUSED
    assert tree.acknowledged == ["every write", 2]
    assert loader.request is None
    assert loader.landed() is None


def test_one_at_a_time():
    loader = Loader(Tree())
    assert not loader.taken
    assert loader.load(PAUSED, [], 3)
    assert loader.taken


@pytest.mark.parametrize(("unacknowledged", "taken"), [(0, False), (1, False), (2, True)])
def test_a_counter_is_left_for_the_next_step(unacknowledged, taken):
    assert Loader(Tree(unacknowledged)).taken is taken


def test_a_restored_tail_takes_no_counter():
    """It was copied before; one event tells of its end."""
    tree = Tree(unacknowledged=1)
    tree.cache_controller.ack_load_queue += [ack("done", "done")] * 3
    assert not Loader(tree).taken


class Counted(array):
    """Token ids that count how often many of them are looked at together."""

    looks = 0

    def __getitem__(self, key):
        Counted.looks += isinstance(key, slice)
        return super().__getitem__(key)


def begins_alike(number, **match):
    """One of many streams with a long beginning in common."""
    made = request([], **match)
    made.origin_input_ids = Counted("q", [*range(3000), 10_000 + number, 5])
    return made


def test_streams_that_begin_alike_are_told_apart_by_one_token():
    others = [begins_alike(n) for n in range(50)]
    wanted = begins_alike(99, device_prefix_len=3000, host_hit_length=2)
    Counted.looks = 0
    assert Loader(Tree()).load(wanted, others, 2) == 2
    assert Counted.looks == 0


@pytest.mark.parametrize(
    "wanted",
    [
        request([8, 8], device_prefix_len=2),
        request([7, 7]),  # nowhere: it will be computed
    ],
)
def test_where_nothing_is_to_be_loaded_nothing_is_waited_for(wanted):
    assert Loader(Tree()).missing(wanted) == Missing()


def test_what_a_running_stream_shares_comes_with_a_step():
    loader = Loader(Tree())
    assert loader.load(PAUSED, [request([1, 2, 3], [4])], 3) == 0
    assert not loader.busy


def test_what_the_engine_refuses_to_load_comes_with_a_step():
    loader = Loader(Tree(refuses=True))
    assert loader.load(PAUSED, [], 3) == 0
    assert not loader.busy


@pytest.mark.parametrize(
    ("rows", "own", "waits_for"),
    [
        ([request([1, 2, 3])], -1, 2),
        ([request([9]), request([1, 2, 3])], -1, 2),
        ([request([1, 2, 9])], -1, -1),
        ([request([1, 2, 3])], 1, 1),  # its own load comes behind on the link
    ],
)
def test_a_stream_that_shares_waits_for_the_load(rows, own, waits_for):
    loader = Loader(Tree())
    loader.load(PAUSED, [], 3)
    batch = SimpleNamespace(reqs=rows, hicache_consumer_index=own)
    loader.guard(batch)
    assert batch.hicache_consumer_index == waits_for


def test_without_a_load_no_stream_waits():
    batch = SimpleNamespace(reqs=[PAUSED], hicache_consumer_index=-1)
    Loader(Tree()).guard(batch)
    assert batch.hicache_consumer_index == -1
