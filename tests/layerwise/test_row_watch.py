"""Which streams have ended, by SGLang's own table of requests."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool

from tokenflow_sgl.engine.layerwise.page_owners import TREE
from tokenflow_sgl.engine.layerwise.row_watch import RowWatch


@pytest.fixture
def pool() -> ReqToTokenPool:
    return ReqToTokenPool(3, 8, "cpu", enable_memory_saver=False)


def arrive(pool: ReqToTokenPool) -> Any:
    kv = SimpleNamespace(holds_kv=False, kv_allocated_len=0)
    request = SimpleNamespace(kv=kv)
    pool.alloc([request])
    kv.holds_kv = True
    return request


def row(request: Any) -> int:
    return int(request.kv.req_pool_idx)


def test_streams_that_end(pool) -> None:
    watch = RowWatch(pool)
    first, second = arrive(pool), arrive(pool)
    assert watch.ended([row(first), row(second)]) == []
    assert watch.ended([row(second)]) == [], "one that is in no step rests"
    gone = row(first)
    pool.free(first)
    assert watch.ended([row(second)]) == [gone]
    assert watch.ended([row(second)]) == [], "it is said once"


def test_a_row_that_another_stream_has_by_now(pool) -> None:
    watch = RowWatch(pool)
    first = arrive(pool)
    gone = row(first)
    watch.ended([gone])
    pool.free(first)
    second = arrive(pool)
    assert row(second) == gone
    assert watch.ended([gone]) == [gone]
    assert watch.ended([gone]) == []


def test_a_flush(pool) -> None:
    watch = RowWatch(pool)
    rows = [row(arrive(pool)) for _ in range(3)]
    watch.ended(rows)
    pool.clear()
    assert watch.ended([row(arrive(pool))]) == rows


def test_no_stream_has_the_trees_row(pool) -> None:
    assert TREE not in {row(arrive(pool)) for _ in range(pool.size)}
