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
