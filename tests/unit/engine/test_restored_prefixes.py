"""What becomes of tails that SGLang's tree does not take yet, or not any more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from restored_tree import KNOWN, Tree, allocate, begin, patch_heads, patch_join
from sglang.srt.managers.schedule_policy import AddReqResult

from tokenflow_sgl.engine.restore.copy_memory import CopyMemory
from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restore_adder import restoring_adder
from tokenflow_sgl.engine.restore.restored_request import Stage
from tokenflow_sgl.engine.telemetry.prometheus import Recorder


class Some:
    """Restorations, and what is done to them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        where = "tokenflow_sgl.engine.restore.restorable.undisturbed_reason"
        monkeypatch.setattr(where, lambda request: None)
        self.tree = Tree()
        record = RestorationRecord(Recorder(), None)
        self.all = Restorations(
            self.tree, 64, make_planner("auto"), record, self.tree.fetched_again.append
        )
        self.heads: dict[str, int] = {}
        self.looked: list[str] = []
        self.joined: list[tuple[str, int]] = []
        patch_heads(monkeypatch, self._head)
        patch_join(monkeypatch, self._join)

    def begin(self, handle: str, head: int = 0) -> Any:
        """The storage has 320 tokens of it, the tree the first `head` ones."""
        request = begin(self.all, self.tree, handle)
        allocate(self.tree, handle).hash_value = [handle] * 20
        self.tree._storage_prefetch_hit_remaining_by_reqid[handle] = 320
        self.heads[handle] = head
        return request

    def arrive(self, handle: str, tokens: int) -> None:
        """So many tokens of its tail have, and no more will."""
        operation = self.tree.ongoing_prefetch[handle].operation
        operation.completed_tokens, operation.handle = tokens, handle
        assert self.all.open.keeps(operation)

    def pass_at(self, now: float, chunked: Any = None, step_end: float = 0.0) -> None:
        self.all.begin_pass(LeaderFigures(now, **KNOWN, step_end=step_end), 0, chunked)

    def _head(self, tree: Any, request: Any) -> int:
        self.looked.append(request.cache_request_handle)
        return self.heads[request.cache_request_handle]

    def _join(self, tree: Any, request: Any, operation: Any, head: int, *rest: Any) -> int:
        self.joined.append((request.cache_request_handle, head))
        del tree.ongoing_prefetch[request.cache_request_handle]
        return 320 - head


@pytest.fixture
def some(monkeypatch) -> Some:
    return Some(monkeypatch)


def test_a_tail_that_has_arrived_is_in_the_tree_before_its_request_is_asked_for(some) -> None:
    """Else it would keep host memory from others as long as the device is full."""
    some.begin("r", head=64)
    some.pass_at(5.0)
    some.arrive("r", 320)
    some.pass_at(5.1)
    assert some.joined == [("r", 64)]
    assert not some.all.open.any
    assert some.all.may_start("r") is None, "SGLang admits it as any other"


def test_a_tail_whose_head_is_not_computed_is_looked_for_once(some) -> None:
    request = some.begin("r", head=0)
    some.pass_at(5.0)
    some.arrive("r", 160)
    for now in (5.1, 5.2, 5.3):
        some.pass_at(now)
    assert some.looked == ["r"], "there may be hundreds"
    request.extend_end = 160
    some.pass_at(5.4, chunked=request)
    assert some.all.next_chunk(request) == 0, "it goes back to the queue"
    assert not some.joined
    some.heads["r"] = 160
    some.pass_at(5.5)
    assert some.joined == [("r", 160)]


def test_a_tail_waits_for_the_one_that_brings_its_beginning(some) -> None:
    some.begin("r")
    some.begin("s")
    some.tree.ongoing_prefetch["s"].operation.hash_value = ["r"] * 20
    some.pass_at(5.0)
    some.arrive("s", 64)
    some.pass_at(5.1)
    assert not some.looked
    some.heads |= {"r": 64, "s": 256}
    some.arrive("r", 320)
    some.pass_at(5.2)
    some.pass_at(5.3)
    assert some.joined == [("r", 64), ("s", 256)]


@pytest.mark.parametrize("head", [320, 336])
def test_a_tail_is_dropped_that_the_tree_has_from_another_request(some, head) -> None:
    """Another request with the same beginning, and more, was computed meanwhile."""
    some.begin("r", head=0)
    some.pass_at(5.0)
    some.heads["r"] = head
    some.arrive("r", 320)
    some.pass_at(5.1)
    assert not some.joined
    assert not some.all.open.any
    assert some.tree.released == [("r", 320)]
    assert some.tree.unfulfilled == [(320, "recomputed")]


def led(some: Some) -> Any:
    """`s`, whose beginning `r` brings; its own pages have arrived."""
    some.begin("r")
    request = some.begin("s")
    some.tree.ongoing_prefetch["s"].operation.hash_value = ["r"] * 20
    some.pass_at(5.0)
    some.arrive("s", 64)
    some.heads["s"] = 0
    return request


def test_none_waits_for_a_fetch_that_has_ended_in_vain(some) -> None:
    """The one in front may rest for minutes, or be of a class that is not served now."""
    request = led(some)
    some.arrive("r", 64)  # not up to its head: pages are gone, or the host is full
    some.pass_at(5.1)
    assert some.all.may_start("s") is False
    assert some.tree.fetched_again == [request]
    some.begin("s")
    some.tree.ongoing_prefetch["s"].operation.hash_value = ["r"] * 20
    some.pass_at(5.2)
    enough = some.tree.ongoing_prefetch["s"].operation.tokenflow_tail.enough
    assert enough >= 320, "it waits for the same one again"


def test_a_beginning_that_is_computed_is_waited_for(some) -> None:
    led(some)
    some.arrive("r", 64)
    some.pass_at(5.1)
    assert some.looked == ["r", "s"], "in vain, both"
    request = some.all.open.get("r").request
    assert some.all.may_start("r") is True
    request.extend_end = some.all.open.get("r").step.chunk
    some.all.admitted(request)
    assert some.all.may_start("s") is False
    assert some.tree.fetched_again == []
    some.heads |= {"r": 256, "s": 256}
    some.pass_at(5.2)
    assert some.joined == [("r", 256), ("s", 256)]


@pytest.mark.parametrize(("host_full", "waits"), [(True, False), (False, True)])
def test_no_tail_is_waited_for_that_the_tree_would_not_take(some, host_full, waits) -> None:
    """Behind a head without a copy on the host SGLang's tree takes none."""
    some.tree.backed_up, some.tree.host_full = False, host_full
    some.begin("r", head=160)
    some.pass_at(5.0, step_end=5.2)
    assert some.all.may_start("r") is not waits
    assert some.all.open.any is waits
    assert some.tree.unfulfilled == ([] if waits else [(320, "host_capacity")])


def test_hits_of_the_storage_that_are_computed_are_told_sglang(some) -> None:
    request = some.begin("r")
    some.pass_at(5.0)
    some.all.open.drop(request)
    assert some.tree.unfulfilled == [], "as of any that is aborted"
    request = some.begin("r")
    some.pass_at(5.0)
    request.extend_end = 320
    assert some.all.next_chunk(request) is None
    assert some.tree.unfulfilled == [(320, "recomputed")]


def test_a_fetch_that_has_failed_holds_nothing_up(some) -> None:
    some.begin("r", head=160)
    some.begin("s")
    some.pass_at(5.0, step_end=5.2)
    assert some.all.may_start("r") is False, "its tail arrives until 5.16"
    assert some.all.may_start("s") is False, "and is not to be delayed"
    some.arrive("r", 64)
    some.pass_at(5.01, step_end=5.2)
    assert some.all.may_start("s") is True


class Adder:
    """As much of SGLang's as admits one request and forgets what the storage had of it."""

    page_size = 16

    def __init__(self, tree: Tree, answer: Any = AddReqResult.CONTINUE) -> None:
        self.tree_cache, self._answer = tree, answer
        self.rem_chunk_tokens, self.new_chunked_req = 64, None
        self.can_run_list: list[Any] = []
        self.log_device_hit_tokens = self.log_hit_tokens = 0

    def add_one_req(self, req: Any, has_chunked_req: bool) -> Any:
        if self._answer is AddReqResult.CONTINUE:
            self._account_prefill_cache_admission(req, 0)
        return self._answer

    def _account_prefill_cache_admission(self, req: Any, prefix_len: int) -> None:
        self.tree_cache._finish_storage_prefetch(req.cache_request_handle, 0, None)


def test_sglang_still_knows_the_storages_hit_when_the_head_is_begun(some) -> None:
    for handle, probe in (("r", False), ("s", True)):
        request = some.begin(handle)
        request.already_computed = 0
        if probe:
            some.all.open.get(handle).goes(Stage.PROBE)
        restoring_adder(Adder, some.all, None)(some.tree).add_one_req(request, False)
    assert some.tree._storage_prefetch_hit_remaining_by_reqid == {"r": 320}


class Copies:
    """Device memory of a tail."""

    def __init__(self, held: int) -> None:
        self.held, self.kept = held, True

    def give_back(self) -> None:
        self.held, self.kept = 0, False


@pytest.mark.parametrize(
    ("tokens", "held"), [(0, [64, 0, 64]), (64, [64, 0, 0]), (65, [0, 0, 0]), (1000, [0, 0, 0])]
)
def test_only_as_much_memory_of_copies_is_given_back_as_is_needed(some, tokens, held) -> None:
    copies = [Copies(64), Copies(0), Copies(64)]
    each = [SimpleNamespace(copies=one) for one in copies]
    memory = CopyMemory({n: one for n, one in enumerate(each)}.values(), some.tree, *[None] * 2, 64)
    memory.give_back(tokens)
    assert [one.held for one in copies] == held
    assert copies[1].kept, "it may still get some"
    memory.give_back()
    assert not any(one.kept for one in copies)


def test_a_request_without_memory_gets_that_of_copies(some) -> None:
    request = some.begin("r")
    request.sampling_params = SimpleNamespace(max_new_tokens=10)
    asked: list[float] = []
    some.all.copy_memory.give_back = asked.append
    adder = restoring_adder(Adder, some.all, None)(some.tree, AddReqResult.NO_TOKEN)
    adder.add_one_req(request, False)
    assert asked == [340 + 10]
