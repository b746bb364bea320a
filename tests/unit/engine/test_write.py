"""Copies of running streams: what is published, and when the copies leave."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fakes.sglang import Request
from tracked import track

from tokenflow_sgl.contract import Write
from tokenflow_sgl.engine.kv.write import Writer
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


class Tree:
    """Takes what is published; counts how often copies are started."""

    is_write_back = False

    def __init__(self, backend):
        self.cache_controller = SimpleNamespace(io_backend=backend)
        self.started = 0

    def checkpoint(self, req, *, up_to):
        req.kv.cache_protected_len = up_to

    def flush_pending_backups(self):
        self.started += 1


@pytest.mark.parametrize(("backend", "started"), [("kernel", 1), ("direct", 0)])
def test_a_pass_never_waits_for_the_device(backend, started) -> None:
    """With `direct` HiCache fetches indices from the device when copies start."""
    tree = Tree(backend)
    table: StreamTable[Request] = StreamTable(LimitLengths())
    writer = Writer(tree, table, Recorder(), page=1)
    requests = [
        Request(prompt=10, made=90, kv=SimpleNamespace(cache_protected_len=10)) for _ in range(3)
    ]
    slots = [
        track(table, req, prompt=10, limit=200, rate=9.0, qos_class="a", arrival=0.0, now=0.0)
        for req in requests
    ]
    assert writer.apply([Write(slot, 64) for slot in slots]) == 192
    assert [req.kv.cache_protected_len for req in requests] == [74] * 3
    assert table.written[slots].tolist() == [64] * 3
    assert tree.started == started


class WrittenBack(Tree):
    """A tree whose HiCache copies nothing before it evicts it: a prompt of ten tokens, and more."""

    is_write_back = True

    def __init__(self, free, copied=()):
        super().__init__("kernel")
        self.cache_controller.mem_pool_host = self
        self.tree_core = self
        self.free, self.copied, self.ends = free, {*copied}, [10]

    def available_size(self):
        return self.free

    def supports_mamba(self):
        return False

    def checkpoint(self, req, *, up_to):
        super().checkpoint(req, up_to=up_to)
        self.ends.append(up_to)

    def collect_path_info(self, nodes):
        starts = [0, *self.ends]
        spans = zip(starts, self.ends, strict=False)
        return [[SimpleNamespace(node_id=b, path_start=a, path_end=b) for a, b in spans]]

    def is_backuped(self, node):
        return node in self.copied

    def _execute_and_commit_kv_backup(self, action):
        (node,) = action.node_ids
        self.copied.add(node)
        start = max((end for end in self.ends if end < node), default=0)
        return node - start

    def inc_host_lock_ref(self, node):
        return SimpleNamespace(node_id=node, to_dec_params=lambda: None)

    def dec_host_lock_ref(self, node, params): ...


class Released(Recorder):
    """Remembers what was said of streams that were paused."""

    def __init__(self):
        self.said = []

    def released(self, tail, needed, held):
        self.said.append((tail, needed, held))


def written_back(tree):
    table: StreamTable[Request] = StreamTable(LimitLengths())
    recorder = Released()
    writer = Writer(tree, table, recorder, page=1)
    req = Request(
        prompt=10,
        made=90,
        last_node=0,
        owned_kv_len=lambda: 99,
        kv=SimpleNamespace(cache_protected_len=10),
    )
    slot = track(table, req, prompt=10, limit=200, rate=9.0, qos_class="a", arrival=0.0, now=0.0)
    return writer, table, recorder, req, slot


@pytest.mark.parametrize(("copied", "tokens"), [((), 74), ((10,), 64)])
def test_where_hicache_copies_at_evictions_we_copy_before(copied, tokens) -> None:
    """Also what the stream has published before: its prompt, unless that has a copy."""
    tree = WrittenBack(free=100, copied=copied)
    writer, table, recorder, req, slot = written_back(tree)
    assert writer.active
    assert writer.apply([Write(slot, 64)]) == tokens
    assert tree.copied == {10, 74}
    assert table.written[slot] == tokens
    assert tree.started == 1
    writer.released(req)
    assert recorder.said == [(25, tokens, 99)]


def test_what_comes_along_drops_no_other_copy() -> None:
    tree = WrittenBack(free=73)
    writer, table, recorder, req, slot = written_back(tree)
    before = int(table.on_host[slot])
    assert writer.apply([Write(slot, 64)]) == 0
    assert req.kv.cache_protected_len == 10
    assert not tree.copied
    assert table.on_host[slot] == before + 64, "it is asked again when there is more"
    writer.released(req)
    assert recorder.said == [(99, 0, 99)], "all of it is copied as it pauses"


def test_a_copy_that_was_dropped_was_written_for_nothing() -> None:
    tree = WrittenBack(free=100)
    writer, _, recorder, req, slot = written_back(tree)
    writer.apply([Write(slot, 64)])
    tree.copied.remove(10)
    writer.released(req)
    assert recorder.said == [(35, 64, 99)]


def test_a_policy_that_copies_selectively_copies_nothing_ahead() -> None:
    tree = WrittenBack(free=100)
    tree.is_write_back, tree.write_through_threshold = False, 2
    assert not written_back(tree)[0].active
