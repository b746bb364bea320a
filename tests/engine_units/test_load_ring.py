"""Prefetches: what is started, which steps wait for it, when it has landed."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import pytest

from tokenflow_sgl.engine.kv import load_ring
from tokenflow_sgl.engine.kv.load_ring import Loader, shares
from tokenflow_sgl.lifecycle import Prefetch


def request(prompt, output=(), **match):
    found = {"device_prefix_len": 0, "host_hit_length": 0, "best_match_node": 7, **match}
    return SimpleNamespace(
        origin_input_ids=array("q", prompt),
        output_ids=array("q", output),
        match=SimpleNamespace(**found),
    )


class Tree:
    """A prefix tree that loads what it is asked for."""

    def __init__(self, unacknowledged=0, refuses=False):
        self.cache_controller = SimpleNamespace(ack_load_queue=[None] * unacknowledged)
        self.ongoing_load_back = {}
        self.refuses = refuses
        self.quotas = []
        self.acknowledged = []

    def writing_check(self, write_back):
        assert write_back
        self.acknowledged.append("every write")

    def loading_check(self, finish_count):
        self.acknowledged.append(finish_count)

    def init_load_back(self, params):
        self.quotas.append(params.mem_quota)
        if self.refuses:
            return 0, 1
        self.ongoing_load_back[params.best_match_node] = None
        return params.host_hit_length, params.best_match_node

    def ready_to_load_host_cache(self):
        return 2


@pytest.fixture(autouse=True)
def matching(monkeypatch):
    monkeypatch.setattr(load_ring, "match_kv_cache", lambda request, tree: request.match)


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
    assert loader.start(PAUSED, [request([9])], room=100) == Prefetch(3)
    assert loader.request is PAUSED
    assert tree.quotas == [100]
    assert loader.ended() is None
    tree.ongoing_load_back.clear()
    assert loader.ended() is PAUSED
    assert loader.ended() is None
    assert loader.request is None


def test_a_pause_waits_for_all_copies_and_acknowledges_them():
    tree = Tree()
    loader = Loader(tree)
    assert loader.settle() is None
    loader.start(PAUSED, [], room=100)
    tree.cache_controller.ack_load_queue = [None, None]
    tree.acknowledged.clear()
    assert loader.settle() is PAUSED
    assert tree.acknowledged == ["every write", 2]
    assert loader.request is None
    assert loader.ended() is None


def test_one_at_a_time():
    loader = Loader(Tree())
    assert not loader.taken
    assert loader.start(PAUSED, [], room=100).tokens
    assert loader.taken


@pytest.mark.parametrize(("unacknowledged", "taken"), [(0, False), (1, False), (2, True)])
def test_a_counter_is_left_for_the_next_step(unacknowledged, taken):
    assert Loader(Tree(unacknowledged)).taken is taken


def test_a_load_without_memory_is_needed_still():
    assert Loader(Tree()).start(PAUSED, [], room=2) == Prefetch(needed=True)


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


def test_without_room_nothing_is_compared():
    others = [begins_alike(n) for n in range(50)]
    wanted = begins_alike(99, device_prefix_len=100, host_hit_length=2000)
    Counted.looks = 0
    assert Loader(Tree()).start(wanted, others, room=1999) == Prefetch(needed=True)
    assert Counted.looks == 0


def test_streams_that_begin_alike_are_told_apart_by_one_token():
    others = [begins_alike(n) for n in range(50)]
    wanted = begins_alike(99, device_prefix_len=3000, host_hit_length=2)
    Counted.looks = 0
    assert Loader(Tree()).start(wanted, others, room=100) == Prefetch(2)
    assert Counted.looks == 0


@pytest.mark.parametrize(
    ("wanted", "running"),
    [
        (request([8, 8], device_prefix_len=2), []),
        (request([7, 7]), []),  # nowhere: it will be computed
        (PAUSED, [request([1, 2, 3], [4])]),  # a stream that runs has the same
    ],
)
def test_where_nothing_is_to_be_loaded_nothing_is_waited_for(wanted, running):
    loader = Loader(Tree())
    assert loader.start(wanted, running, room=100) == Prefetch()
    assert loader.request is None


def test_what_the_engine_refuses_to_load_comes_with_a_step():
    loader = Loader(Tree(refuses=True))
    assert loader.start(PAUSED, [], room=100) == Prefetch()
    assert loader.request is None


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
    loader.start(PAUSED, [], room=100)
    batch = SimpleNamespace(reqs=rows, hicache_consumer_index=own)
    loader.guard(batch)
    assert batch.hicache_consumer_index == waits_for


def test_without_a_load_no_stream_waits():
    batch = SimpleNamespace(reqs=[PAUSED], hicache_consumer_index=-1)
    Loader(Tree()).guard(batch)
    assert batch.hicache_consumer_index == -1
