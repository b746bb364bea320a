"""Restorations beside a tree that only pretends: what SGLang does meanwhile hurts nothing."""

from __future__ import annotations

import math
import random
from types import SimpleNamespace
from typing import Any

import pytest
from restored_tree import KNOWN, PAGE, Tree, allocate, begin, operation, patch_heads
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.outlook import BATCHES_LATE, LONGEST_QUERY, Landings, Outlook
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restored_request import Restoration, Stage
from tokenflow_sgl.engine.restore.tail_copies import TailCopies
from tokenflow_sgl.engine.restore.tail_fetch import mark
from tokenflow_sgl.engine.telemetry.prometheus import Recorder


@pytest.fixture
def made(monkeypatch) -> tuple[Restorations, Tree, Any]:
    """One request, `r`, whose prefetch has just begun."""
    where = "tokenflow_sgl.engine.restore.restorable.undisturbed_reason"
    monkeypatch.setattr(where, lambda request: None)
    tree = Tree()
    record = RestorationRecord(Recorder(), None)
    restorations = Restorations(tree, 64, make_planner("auto"), record, tree.fetched_again.append)
    request = begin(restorations, tree, "r")
    assert restorations.open.any
    return restorations, tree, request


def test_what_sglang_has_dropped_in_this_very_pass_is_not_ended_twice(made) -> None:
    restorations, tree, request = made
    allocate(tree, "r")
    tree.ongoing_prefetch.clear()  # an abort, just before the pause
    restorations.open.pause()
    restorations.open.drop(request)
    assert tree.released == []
    assert not restorations.open.any


def test_a_pause_gives_back_all_that_has_arrived(made) -> None:
    restorations, tree, _ = made
    restorations.open.pause()
    assert restorations.open.any, "the storage is still being asked"
    allocate(tree, "r").completed_tokens = 48  # while paused, so that no pass has seen it
    restorations.open.pause()
    assert tree.released == [("r", 48)]


def test_a_fetch_that_ends_in_a_pause_is_not_kept(made) -> None:
    restorations, tree, _ = made
    restorations.open.pause()
    fetched = allocate(tree, "r")
    fetched.completed_tokens = 320
    assert restorations.open.keeps(fetched)
    assert tree.released == [("r", 320)]


def test_models_with_windows_or_states_keep_sglangs_way(made) -> None:
    restorations, tree, request = made
    restorations.open.drop(request)
    tree.ongoing_prefetch["r"] = SimpleNamespace(operation=operation(), host_indices=None)
    tree.tree_components = (ComponentType.FULL, ComponentType.SWA)
    restorations.watch(request)
    assert not restorations.open.any
    tree.tree_components = Tree.tree_components
    restorations.watch(request)
    assert restorations.open.any


def test_a_query_is_waited_for_and_not_for_ever(made) -> None:
    restorations, tree, _ = made
    assert restorations.may_start("r") is False, "it was not looked at yet"
    restorations.begin_pass(LeaderFigures(10.0), 0)
    assert restorations.may_start("r") is False
    restorations.begin_pass(LeaderFigures(10.0 + LONGEST_QUERY / 2), 0)
    assert restorations.may_start("r") is False
    restorations.begin_pass(LeaderFigures(10.1 + LONGEST_QUERY), 0)
    assert restorations.may_start("r") is True
    assert tree.released == [("r", 0)]
    assert restorations.may_start("r") is None


def with_memory(tree: Tree, monkeypatch, free: int) -> list[int]:
    """Copies can be made; returns the tokens that they take, in turn."""
    taken: list[int] = []

    def reserve(self: Any, tokens: int, leave: int) -> None:
        if tokens + leave <= free:
            taken.append(tokens)
            self._slots = [0] * tokens

    monkeypatch.setattr(TailCopies, "reserve", reserve)
    monkeypatch.setattr(TailCopies, "asked", property(lambda self: self._slots is not None))
    tree.token_to_kv_pool_allocator = SimpleNamespace(
        available_size=lambda: free - sum(taken), free_page_ids=lambda pages: taken.clear()
    )
    tree.evictable_size = lambda: 0
    monkeypatch.setattr(TailCopies, "_free", lambda self, slots: taken.clear())
    return taken


@pytest.mark.parametrize("needed", [0, 1500])
def test_memory_that_the_next_step_needs_is_not_taken_for_copies(made, monkeypatch, needed):
    restorations, tree, _ = made
    taken = with_memory(tree, monkeypatch, free=2000)
    allocate(tree, "r")
    restorations.begin_pass(LeaderFigures(5.0, **KNOWN), needed)
    assert bool(taken) == (needed == 0), "else it would be given back in the same pass"
    assert restorations.copy_memory.held_tokens == sum(taken)


def test_a_request_that_waits_is_looked_at_again_when_something_arrives(made, monkeypatch) -> None:
    restorations, tree, _ = made
    fetch, looked = allocate(tree, "r"), []
    each = next(iter(restorations.open.all))
    patch_heads(monkeypatch, lambda tree, request: looked.append(1) or 160)
    restorations.begin_pass(LeaderFigures(5.0, **KNOWN, step_end=5.2), 0)
    assert restorations.may_start("r") is False
    assert math.isfinite(each.wait.landing)
    for _ in range(3):
        assert restorations.may_start("r") is False
    assert len(looked) == 1
    fetch.completed_tokens = 16
    restorations.begin_pass(LeaderFigures(5.01, **KNOWN, step_end=5.2), 0)
    restorations.may_start("r")
    assert len(looked) == 2
    restorations.begin_pass(LeaderFigures(each.wait.landing + 1.0, **KNOWN), 0)
    restorations.may_start("r")
    assert len(looked) == 3, "and when it should have landed"


def test_a_head_delays_none_that_came_before_and_waits_for_its_tail(made, monkeypatch) -> None:
    restorations, tree, _ = made
    allocate(tree, "r")
    begin(restorations, tree, "s")
    allocate(tree, "s").hash_value = ["another"] * 20
    first, second = restorations.open.all
    patch_heads(monkeypatch, lambda tree, request: 160 if request is first.request else 0)
    restorations.begin_pass(LeaderFigures(5.0, **KNOWN, step_end=5.16), 0)
    assert restorations.may_start("r") is False, "its tail arrives until 5.16"
    assert restorations.may_start("s") is False, "nothing fits before that"
    assert math.isinf(second.wait.landing), "so that it is looked at in each pass"
    restorations.begin_pass(LeaderFigures(5.17, **KNOWN), 0)
    assert restorations.may_start("s") is True, "what is late holds nothing up"


def test_a_fetch_that_takes_anothers_place_gives_its_memory_back(made, monkeypatch) -> None:
    restorations, tree, request = made
    taken = with_memory(tree, monkeypatch, free=2000)
    allocate(tree, "r")
    restorations.begin_pass(LeaderFigures(5.0, **KNOWN), 0)
    assert taken
    tree.ongoing_prefetch["r"] = SimpleNamespace(operation=operation(), host_indices=None)
    restorations.watch(request)
    assert not taken
    assert restorations.copy_memory.held_tokens == 0


@pytest.mark.parametrize("ends", ["joined", "aborted"])
def test_a_shared_beginning_is_waited_for(made, monkeypatch, ends) -> None:
    restorations, tree, _ = made
    second = begin(restorations, tree, "s")
    allocate(tree, "r", tokens=256)
    fetch = allocate(tree, "s", tokens=320)
    restorations.begin_pass(LeaderFigures(5.0, **KNOWN), 0)
    assert fetch.tokenflow_tail.enough == 64, "the other one brings the rest"
    assert restorations.may_start("s") is False
    del tree.ongoing_prefetch["r"]
    restorations.begin_pass(LeaderFigures(5.1, **KNOWN), 0)
    cached = 256 if ends == "joined" else 128
    patch_heads(monkeypatch, lambda tree, request: cached)
    assert restorations.may_start("s") is (ends == "joined")
    assert tree.fetched_again == ([] if ends == "joined" else [second])
    assert tree.released == ([] if ends == "joined" else [("s", 0)])
    assert restorations.open.any == (ends == "joined")


def test_the_log_is_told_what_the_other_ways_would_have_taken(made) -> None:
    _, tree, request = made
    request.rid = "r"
    told = []
    log = SimpleNamespace(restored=told.append)
    record = RestorationRecord(Recorder(), log)
    fetch = allocate(tree, "r")
    each = Restoration(request, fetch, began=4.0)
    outlook = Outlook([each], PAGE, 64)
    outlook.begin_pass(LeaderFigures(4.5), moved=False)
    record.alone(each, outlook)
    outlook.begin_pass(LeaderFigures(5.0, rate=1000.0, prefill=(0.0, 0.001, 0.0)), moved=False)
    record.joined(each, 128, 0, outlook)
    each.fetched = True
    record.alone(each, outlook)
    alike = {"rid": "r", "failed": False}
    known = {"compute": 0.32, "fetch": 0.32, "took": 1.0}
    assert told == [
        alike | {"way": "computed", "computed": 320, "fetched": 0, "seconds": {"took": 0.5}},
        alike | {"way": "both", "computed": 192, "fetched": 128, "seconds": known},
        alike
        | {"way": "computed", "computed": 320, "fetched": 0, "seconds": known}
        | {"failed": True},
    ]


def test_a_link_that_brings_nothing_is_late_for_all() -> None:
    fetches = [operation(), operation()]
    for each in fetches:
        mark(each, PAGE, None, math.nan, None)
        each.host_indices = [0] * 320
    hung, later = (Restoration(None, each, Stage.TAIL) for each in fetches)
    outlook = Outlook([hung, later], PAGE, 64)
    outlook.begin_pass(LeaderFigures(5.0, rate=1000.0), moved=False)
    assert (hung.link.on_link, later.link.on_link) == (True, False)
    expected = BATCHES_LATE * hung.tail.batch * PAGE / 1000.0
    assert outlook.fetch(later)(100) == pytest.approx((320 + 100) / 1000.0)
    outlook.begin_pass(LeaderFigures(6.0 + expected, rate=1000.0), moved=False)
    late = outlook.fetch(later)(100)
    assert late == pytest.approx((320 + 100) / 1000.0 + 1.0 + expected)
    assert outlook.fetch(later)(0) == 0.0
    outlook.begin_pass(LeaderFigures(7.0 + expected, rate=1000.0), moved=True)
    assert outlook.fetch(later)(100) == pytest.approx((320 + 100) / 1000.0)


def test_a_fetch_that_begins_behind_a_dead_one_does_not_wake_the_link() -> None:
    fetches = [operation() for _ in range(3)]
    for each in fetches:
        mark(each, PAGE, None, math.nan, None)
    hung, later, last = (Restoration(None, each) for each in fetches)
    outlook = Outlook([hung, later, last], PAGE, 64)
    now = 5.0
    for begun in range(3):
        fetches[begun].host_indices = [0] * 320
        (hung, later, last)[begun].goes(Stage.FOUND)
        outlook.begin_pass(LeaderFigures(now, rate=1000.0), moved=False)
        now += 1.0
    assert outlook.fetch(hung)(100) == pytest.approx(0.1 + 2.0)
    hung.fetched = True  # given up
    outlook.begin_pass(LeaderFigures(now, rate=1000.0), moved=False)
    assert later.link.on_link
    assert outlook.fetch(last)(100) == pytest.approx((320 + 100) / 1000.0)


def test_the_soonest_landing_before_any_of_them() -> None:
    rng = random.Random(5)
    for _ in range(200):
        landings, said = Landings(), {}
        for _ in range(12):
            number, time = rng.randrange(10), float(rng.randrange(20))
            landings.add(number, time)
            said[number] = min(said.get(number, math.inf), time)
            asked = rng.randrange(12)
            before = [time for number, time in said.items() if number < asked]
            assert landings.soonest(asked) == min(before, default=math.inf)
