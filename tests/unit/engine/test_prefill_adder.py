"""How long a prefill step may be, and whether what is loaded before it leaves it room."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.managers.schedule_policy import AddReqResult, PrefillAdder

from tokenflow_sgl.engine.prefill_adder import AdmissionLimits, adder_class


@pytest.mark.parametrize(
    ("limit", "page", "align", "chunk"),
    [
        (256, 1, None, 256),
        (257, 64, None, 256),
        (10, 64, None, 64),
        (256, 1, 4096, 4096),
        (4096, 1, 4096, 4096),
        (4097, 1, 4096, 8192),
        (256, 64, 96, 384),
        (256, None, None, 8192),
    ],
)
def test_a_chunk_is_whole_pages_or_whole_pieces(monkeypatch, limit, page, align, chunk) -> None:
    """Before the rows that decode beside it are taken off; never longer than SGLang's own."""
    given = []
    monkeypatch.setattr(PrefillAdder, "__init__", lambda self, *args: given.append(args))
    active = page is not None
    limits = AdmissionLimits(active=active, prefill_limit=limit, align=align)
    adder_class(limits)(page or 1, None, None, None, 0.5, 16_384, 8192, 0)
    assert given[0][6] == chunk
    adder_class(limits)(page or 1, None, None, None, 0.5, 16_384, 8192, 30)
    assert given[1][6] == min(chunk + (30 if active else 0), 8192)


class Pool:
    """Windows of a device: 17 tokens are free, 28 can be evicted; a load's own prefix has 13."""

    def __init__(self) -> None:
        self.locked: list[str] = []

    def lock(self, node: str) -> str:
        self.locked.append(node)
        return node

    def unlock(self, lock: str) -> None:
        self.locked.remove(lock)

    @property
    def free(self) -> int:
        return 17 + 28 - 13 * ("matched" in self.locked)


class Adding:
    """An adder, and a request that 10 tokens of windows are loaded for and 25 computed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, windows: bool = True) -> None:
        self.pool, self.seen = Pool(), []
        monkeypatch.setattr(PrefillAdder, "__init__", lambda adder, *args: None)
        monkeypatch.setattr(
            PrefillAdder,
            "_select_prefill_admission",
            lambda adder, *args, **kw: self._select(*args, **kw),
        )
        monkeypatch.setattr(
            PrefillAdder,
            "add_one_req",
            lambda adder, req: adder._select_prefill_admission(req, total_tokens=25),
        )
        self.limits = AdmissionLimits()
        self.adder = adder_class(self.limits)(1, None, None, None, 0.5, 16_384, 8192)
        self.adder.tree_cache, self.adder.is_hybrid_swa = self.pool, windows
        self.adder.can_run_list = []
        self.adder.running_batch = SimpleNamespace(reqs=["another"])
        hits = {f"{kind}host_hit_length": 10 for kind in ("", "swa_", "mamba_")}
        self.req: Any = RequestOnHost(best_match_node="matched", **hits)

    def _select(self, req: Any, *, total_tokens: int) -> AddReqResult:
        self.seen.append(self.pool.free)
        fits = total_tokens + req.swa_host_hit_length < self.pool.free
        return AddReqResult.CONTINUE if fits else AddReqResult.NO_TOKEN

    def add(self) -> AddReqResult:
        found: AddReqResult = self.adder.add_one_req(self.req)
        assert not self.pool.locked
        return found


class RequestOnHost(SimpleNamespace):
    auxiliary_swa_host_hit_length = 0
    __hash__ = object.__hash__
    needs_host_load_back = Req.needs_host_load_back


def test_what_a_load_will_lock_is_not_free(monkeypatch) -> None:
    """Else the step finds too little, and SGLang's scheduler ends."""
    adding = Adding(monkeypatch)
    assert adding.add() is AddReqResult.NO_TOKEN
    assert adding.seen == [32]
    one_pool = Adding(monkeypatch, windows=False)
    assert one_pool.add() is AddReqResult.CONTINUE
    assert one_pool.seen == [45], "there SGLang's count is right"


@pytest.mark.parametrize("batch", [None, SimpleNamespace(reqs=[])])
def test_a_load_that_nothing_makes_room_for_is_computed(monkeypatch, batch) -> None:
    adding = Adding(monkeypatch)
    adding.adder.running_batch = batch
    assert adding.add() is AddReqResult.CONTINUE
    assert adding.seen == [32, 45]
    assert not adding.req.needs_host_load_back()


def test_it_waits_while_a_prompt_before_it_may_make_room(monkeypatch) -> None:
    adding = Adding(monkeypatch)
    adding.adder.running_batch, adding.adder.can_run_list = None, ["another"]
    assert adding.add() is AddReqResult.NO_TOKEN
    assert adding.req.needs_host_load_back()


def test_nothing_is_loaded_of_what_is_to_be_computed(monkeypatch) -> None:
    """Neither KV nor windows nor states."""
    adding = Adding(monkeypatch)
    adding.limits.recompute = frozenset([adding.req])
    assert adding.add() is AddReqResult.CONTINUE
    assert adding.seen == [45]
    assert not adding.req.needs_host_load_back()
