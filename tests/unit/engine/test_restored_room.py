"""What is admitted beside a head leaves memory for the rest of its prompt.

SGLang dies where a prompt that is prefilled in part has no memory for its next chunk.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from restored_tree import KNOWN, PAGE, Tree, allocate, begin, patch_heads, patch_join
from sglang.srt.managers.schedule_policy import AddReqResult
from sglang.srt.mem_cache.prefill_budget import PrefillBudget

from tokenflow_sgl.engine.restore.leader_figures import LeaderFigures
from tokenflow_sgl.engine.restore.planners import make_planner
from tokenflow_sgl.engine.restore.restoration_record import RestorationRecord
from tokenflow_sgl.engine.restore.restorations import Restorations
from tokenflow_sgl.engine.restore.restore_adder import restoring_adder
from tokenflow_sgl.engine.telemetry.prometheus import Recorder

PROMPT, ANSWER, CHUNK = 340, 10, 64


class Adder:
    """Admits a part of a prompt, as SGLang does, by SGLang's own sums."""

    page_size = PAGE

    def __init__(self, tree: Any, free: int) -> None:
        allocator = SimpleNamespace(page_size=PAGE, available_size=lambda: free)
        self.tree_cache, self.memory_budget = tree, PrefillBudget(allocator, tree)
        self.rem_chunk_tokens, self.chunked_req_limit = 512, None
        self.can_run_list: list[Any] = []
        self.new_chunked_req: Any = None
        self.log_device_hit_tokens = self.log_hit_tokens = 0

    def add_one_req(self, req: Any, has_chunked_req: bool) -> Any:
        self._add_part(req, self.rem_chunk_tokens)
        self.new_chunked_req = req
        return self.budget_state()

    def add_chunked_req(self, req: Any) -> Any:
        self._add_part(req, self.chunked_req_limit or self.rem_chunk_tokens)
        return req

    def _add_part(self, req: Any, tokens: int) -> None:
        req.extend_end = req.prefix_len + tokens
        self.can_run_list.append(req)
        self.rem_chunk_tokens -= tokens
        self.memory_budget.reserve(tokens, 0)

    def budget_state(self) -> Any:
        fits = self.memory_budget.has_capacity()
        return AddReqResult.CONTINUE if fits else AddReqResult.NO_TOKEN


@pytest.fixture
def some(monkeypatch) -> Any:
    """A request that computes 64 tokens of its head, and then the next ones."""
    where = "tokenflow_sgl.engine.restore.restorable.undisturbed_reason"
    monkeypatch.setattr(where, lambda request: None)
    patch_heads(monkeypatch, lambda tree, request: request.prefix_len)
    patch_join(monkeypatch, lambda tree, request, operation, head, *rest: 320 - head)
    tree: Any = Tree()
    tree.supports_mamba, tree.evictable_size = lambda: False, lambda: 0
    record = RestorationRecord(Recorder(), None)
    all_ = Restorations(tree, CHUNK, make_planner("auto"), record, tree.fetched_again.append)
    request = begin(all_, tree, "r")
    request.sampling_params = SimpleNamespace(max_new_tokens=ANSWER)
    allocate(tree, "r")
    all_.begin_pass(LeaderFigures(5.0, **KNOWN), 0)
    return SimpleNamespace(all=all_, tree=tree, request=request)


def left_beside(adder: Any) -> int:
    """Tokens of memory that SGLang gives others in this step."""
    return int(adder.memory_budget.remaining_total)


@pytest.mark.parametrize("held", [0, 128])
def test_the_rest_of_a_prompt_is_kept_in_each_step_of_its_head(some, held) -> None:
    some.all.open.get("r").copies._slots = [0] * held if held else None
    each = some.all.open.get("r")
    each.step.chunk = CHUNK
    adder = restoring_adder(Adder, some.all, None)(some.tree, 1000)
    assert adder.add_one_req(some.request, False) is AddReqResult.CONTINUE
    rounded = -(-(PROMPT - CHUNK - held) // PAGE) * PAGE
    assert left_beside(adder) == 1000 - (CHUNK + PAGE) - (rounded + PAGE + ANSWER)

    some.request.prefix_len, each.step.chunk = CHUNK, CHUNK
    adder = restoring_adder(Adder, some.all, None)(some.tree, 1000)
    assert adder.add_chunked_req(some.request) is some.request
    rounded = -(-(PROMPT - 2 * CHUNK - held) // PAGE) * PAGE
    assert left_beside(adder) == 1000 - (CHUNK + PAGE) - (rounded + PAGE + ANSWER)


def test_one_for_whose_rest_there_is_no_memory_is_alone_in_its_step(some) -> None:
    given_back: list[float] = []
    some.all.copy_memory.give_back = given_back.append
    some.all.open.get("r").step.chunk = CHUNK
    adder = restoring_adder(Adder, some.all, None)(some.tree, PROMPT)
    assert adder.add_one_req(some.request, False) is AddReqResult.NO_TOKEN
    assert adder.can_run_list == [some.request]
    assert given_back == [], "it was admitted"


@pytest.mark.parametrize(("free", "locks"), [(64 + CHUNK, True), (64 + CHUNK - 1, False)])
def test_no_head_is_locked_that_the_step_being_filled_may_need(some, free, locks) -> None:
    """It is as long as it is copied, to the host or with copies of its tail."""
    some.tree.token_to_kv_pool_allocator.available_size = lambda: free
    some.request.prefix_len = 64
    each, asked = some.all.open.get("r"), []
    each.copies._slots = [0] * 64
    each.copies.hand_over = lambda request: asked.append("tail") or 64
    each.copies.give_back = lambda: None
    each.arrived = each.operation.completed_tokens = 320 - 64
    assert some.all.may_start("r") is True
    assert asked == (["tail"] if locks else [])


@pytest.mark.parametrize(("free", "locks"), [(64 + CHUNK, True), (64 + CHUNK - 1, False)])
def test_no_head_is_copied_to_the_host_that_the_step_being_filled_may_need(
    some, free, locks
) -> None:
    some.tree.token_to_kv_pool_allocator.available_size = lambda: free
    some.tree.backed_up, some.request.prefix_len = False, 64
    each = some.all.open.get("r")
    each.arrived = each.operation.completed_tokens = 320 - 64
    assert some.all.may_start("r") is True, "joined, or computed"
    assert some.tree.backed_up is locks
    assert bool(some.tree.released) is not locks
