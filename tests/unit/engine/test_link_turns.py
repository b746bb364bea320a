"""Which fetch the link gets next, and how SGLang's I/O thread is told."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from restored_tree import KNOWN, PAGE, Operation, Tree, allocate, begin
from sglang.srt.managers.cache_controller import HiCacheController, PrefetchAck

from tokenflow_sgl.costs import LatestRate
from tokenflow_sgl.engine.restore import link_thread
from tokenflow_sgl.engine.restore.fetch_ends import fetches_of
from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.link_thread import Turn
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.tail_fetch import mark, tail_of
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.restoration import link_shares

STEP = 64
"""Tokens of a prefill step. By `KNOWN` it takes 0.064 s, in which the link loads as many."""
BATCH = 2
"""Pages of a batch."""


class Several:
    """Fetches of 320 tokens each that no thread has been told of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, handles: str) -> None:
        where = "tokenflow_sgl.engine.restore.restorable.undisturbed_reason"
        monkeypatch.setattr(where, lambda request: None)
        self.tree = Tree()
        self.tree.cache_controller = self.controller = SimpleNamespace(
            mem_pool_device_allocator=None, prefetch_buffer=Queue()
        )
        self.order: list[str] | None = None
        record = RestorationRecord(Recorder(), None)
        self.all = Restorations(
            *(self.tree, STEP, make_planner("auto"), record, lambda request: None),
            admission=self._admission,
        )
        self.requests = {handle: begin(self.all, self.tree, handle) for handle in handles}
        self.operations = {handle: self._allocate(handle) for handle in handles}

    def _allocate(self, handle: str) -> Any:
        info = self.tree.ongoing_prefetch[handle]
        info.operation.handle, info.operation.is_terminated = handle, lambda: False
        operation = allocate(self.tree, handle)
        # The keys of different prompts differ.
        operation.hash_value = [f"{handle}{key}" for key in operation.hash_value]
        fetch = tail_of(operation)
        assert fetch is not None
        fetch.batch, fetch.handed = BATCH, 0
        fetches_of(self.controller)[operation] = 0
        return operation

    def _admission(self) -> list[Any] | None:
        return None if self.order is None else [self.requests[handle] for handle in self.order]

    def turns(self, measured: LeaderFigures | None = None) -> list[tuple[str, int | None]]:
        """What the thread is told after a pass: of which fetch, and how many batches."""
        self.all.begin_pass(measured or LeaderFigures(5.0, **KNOWN), 0)
        self.all.turns.hand_on()
        queue = self.controller.prefetch_buffer
        said = [queue.get() for _ in range(queue.qsize())]
        return [(turn.operation.handle, turn.batches) for turn in said]

    def report(self, handle: str, batches: int, tokens: int) -> None:
        """The threads have reported so many batches, and so many tokens are there."""
        operation = self.operations[handle]
        fetches_of(self.controller)[operation] += batches
        operation.completed_tokens = tokens


@pytest.mark.parametrize(
    ("left", "most", "shares"),
    [
        ([100, 100], 150, [100, 50]),
        ([100, 100], 100, [100, 0]),
        ([100, 100], -5, [0, 0]),
        ([], 100, []),
    ],
)
def test_a_link_is_told_of_no_more_than_it_can_load(left, most, shares) -> None:
    assert link_shares(left, most) == shares


def test_no_more_is_handed_on_than_is_loaded_until_the_next_look(monkeypatch) -> None:
    """A step takes 64 ms, and two batches are for safety: 76 tokens, which are three batches."""
    some = Several(monkeypatch, "ab")
    assert some.turns(LeaderFigures(5.0, **KNOWN)) == [("a", 3)]
    assert some.turns() == [], "it has not loaded it yet"
    some.report("a", 2, 64)
    assert some.turns() == [("a", 2)]


def test_what_is_admitted_first_is_loaded_first(monkeypatch) -> None:
    some = Several(monkeypatch, "abc")
    some.order = ["c", "b", "a"]
    assert some.turns() == [("c", 3)]
    some.report("c", 3, 96)
    some.order = ["b", "a", "c"]
    assert some.turns() == [("b", 3)], "also if another one was begun"
    some.order = ["b", "a"]
    some.report("b", 3, 96)
    assert some.turns() == [("c", 3)], "it is being computed now"


def test_who_brings_the_beginning_of_another_goes_before_it(monkeypatch) -> None:
    some = Several(monkeypatch, "abc")
    some.order = ["c", "b", "a"]
    alike = some.operations["a"].hash_value
    some.operations["c"].hash_value = [*some.operations["c"].hash_value[:5], *alike[5:]]
    assert some.turns() == [("a", 3)]
    assert some.all.open.get("c").leader is some.all.open.get("a")
    some.report("a", 3, 96)
    some.order = ["b", "c", "a"]
    assert some.turns() == [("b", 3)]


def test_all_is_handed_on_while_the_link_is_not_known(monkeypatch) -> None:
    some = Several(monkeypatch, "ab")
    assert some.turns(LeaderFigures(5.0)) == [("a", None), ("b", None)]


def test_what_brings_nothing_more_ends_at_once(monkeypatch) -> None:
    some = Several(monkeypatch, "abcd")
    assert some.turns() == [("a", 3)]
    some.report("a", 2, 32)  # a page was missing
    some.operations["b"].is_terminated = lambda: True
    some.all.open.drop(some.requests["c"])
    assert some.turns() == [("a", None), ("b", None), ("c", None), ("d", 3)]


def test_one_that_is_computed_alone_before_its_turn_is_not_fetched(monkeypatch) -> None:
    """Others measure the link."""
    some = Several(monkeypatch, "ab")
    some.turns()
    some.all.open.compute_alone(some.all.open.get("b"))
    assert some.tree.released == [("b", 0)]
    some.all.open.compute_alone(some.all.open.get("a"))
    assert some.all.open.get("a") is not None, "a batch of it is under way"


def test_the_link_is_expected_as_it_is_told(monkeypatch) -> None:
    some = Several(monkeypatch, "ab")
    some.turns()
    some.order = ["b", "a"]
    some.turns()
    first, second = some.all.open.get("b"), some.all.open.get("a")
    some.all.begin_pass(LeaderFigures(5.0, **KNOWN), 0)
    assert (first.link.number, first.link.ahead) == (0, 3 * BATCH * PAGE), (
        "behind what the thread has"
    )
    assert (second.link.number, second.link.on_link) == (1, True)
    assert second.link.ahead == 320


class Thread:
    """SGLang's I/O thread, with a storage that has all pages."""

    def __init__(self) -> None:
        self.controller: Any = SimpleNamespace(
            page_size=PAGE,
            prefetch_buffer=Queue(),
            prefetch_sync_queue=Queue(),
            storage_stop_event=threading.Event(),
            mem_pool_host=SimpleNamespace(layout_lease=nullcontext),
            _page_transfer_kv_batch=self._get,
            _page_transfer=self._transfer,
        )
        self.got: list[str] = []

    def _get(self, operation: Any, keys: list[str], *rest: Any) -> int:
        self.got += keys
        return len(keys)

    def _transfer(self, operation: Any) -> None:
        fetch = tail_of(operation)
        if fetch is None:
            self.got += operation.hash_value
        else:
            fetch.fetch(self.controller, operation)

    def run(self, *items: Any) -> list[PrefetchAck]:
        """What it reports of these."""
        for item in items:
            self.controller.prefetch_buffer.put(item)
        thread = threading.Thread(
            target=link_thread._work, args=(HiCacheController.prefetch_io_aux_func, self.controller)
        )
        thread.start()
        while not self.controller.prefetch_buffer.empty():
            threading.Event().wait(0.001)
        self.controller.storage_stop_event.set()
        self.controller.prefetch_buffer.put(None)  # as SGLang stops it
        thread.join(10.0)
        assert not thread.is_alive()
        reports = self.controller.prefetch_sync_queue
        return [reports.get() for _ in range(reports.qsize())]


def fetch_of(name: str, pages: int, *, tail: bool = True) -> Any:
    copies = SimpleNamespace(copy=lambda tokens: None)
    made = Operation(
        request_id=name,
        hash_value=[f"{name}{page}" for page in range(pages)],
        host_indices=list(range(pages * PAGE)),
        is_terminated=lambda: False,
    )
    if tail:
        mark(made, PAGE, LatestRate(), 0.0, copies)  # type: ignore[arg-type]
        made.tokenflow_tail.batch = BATCH
    return made


def test_the_thread_loads_turns_and_ends_a_fetch_once() -> None:
    thread, one, other = Thread(), fetch_of("a", 7), fetch_of("b", 3)
    stock = fetch_of("s", 2, tail=False)
    items = (one, stock, Turn(one, 2), other, Turn(other, None), Turn(one, None))
    reports = thread.run(*items)
    assert "".join(thread.got) == "s0s1a0a1a2a3b0b1b2a4a5a6"
    told = [(each.rid, each.completed_tokens, each.completed_req) for each in reports]
    assert told == [
        ("s", None, True),
        *(("a", 32, None), ("a", 64, None)),
        *(("b", 32, None), ("b", 48, None), ("b", None, True)),
        *(("a", 96, None), ("a", 112, None), ("a", None, True)),
    ]


def test_a_dropped_fetch_is_reported_batch_by_batch_without_being_loaded() -> None:
    thread, one = Thread(), fetch_of("a", 5)
    one.is_terminated = lambda: True
    reports = thread.run(one, Turn(one, None))
    assert thread.got == []
    assert [each.completed_tokens for each in reports] == [0, 0, 0, None]
