"""What SGLang sees of a decode server's queue, and what joins its batch."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from decode_requests import Request
from sglang.srt.managers.scheduler import Scheduler
from tokenflow_sgl.engine.decode_server.decode_scheduler import TokenFlowDecodeScheduler
from tokenflow_sgl.engine.scheduler import TokenFlowScheduler

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.decode_server import decode_scheduler
from tokenflow_sgl.engine.telemetry.sampling import Effort
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


class Arriving:
    """SGLang's queue of requests that wait for memory."""

    def __init__(self, *requests: Request) -> None:
        self.queue = [SimpleNamespace(req=request, waiting_for_input=True) for request in requests]
        self.polls = 0
        self.held_rebootstrap_reqs: list[Any] = []
        self.retracted_queue: list[Any] = []
        self.num_reserved_decode_tokens = 512

    def _resolve_pending_reqs(self) -> None:
        self.polls += 1

    def _update_handshake_waiters(self) -> None:
        """Nothing to ask here."""

    @property
    def names(self) -> list[str]:
        return [each.req.rid for each in self.queue]


@pytest.fixture
def scheduler(monkeypatch) -> Any:
    made: Any = object.__new__(TokenFlowDecodeScheduler)
    made.tf_table = StreamTable(LimitLengths())
    requests = [Request(name) for name in "abcd"]
    for request in requests[:3]:
        made.tf_table.track(
            request, prompt=3, limit=9, rate=10.0, qos_class="reading", arrival=0.0, now=0.0
        )
    made.disagg_decode_prealloc_queue = Arriving(*requests)
    made.requests = requests
    made.tf_pauser = SimpleNamespace(paused={}, may_pause=True, retraction_loses=True)
    made.tf_effort = Effort()
    made.tf_actuator = SimpleNamespace(chosen=True, offered=[requests[2], requests[0]])
    monkeypatch.setattr(
        decode_scheduler,
        "get_disagg",
        lambda: SimpleNamespace(disaggregation_decode_polling_interval=1),
    )
    return made


def test_sglang_sees_what_was_chosen_in_its_order_and_strangers_first(scheduler) -> None:
    queue = scheduler.disagg_decode_prealloc_queue
    with scheduler._tf_chosen():
        assert queue.names == ["d", "c", "a"], "d is a health check, say"
        del queue.queue[1]  # c gets its memory
    assert queue.names == ["a", "b", "d"], "in their order of arrival"
    assert queue.polls == 1


def test_what_failed_or_is_not_ready_is_not_hidden_and_comes_last(scheduler) -> None:
    queue = scheduler.disagg_decode_prealloc_queue
    scheduler.tf_actuator.offered = [scheduler.requests[2]]
    queue.queue[0].waiting_for_input = False
    scheduler.requests[1].finished_reason = "aborted"
    with scheduler._tf_chosen():
        assert queue.names == ["d", "c", "a", "b"]
    assert queue.names == ["a", "b", "c", "d"]


def test_without_a_choice_sglang_sees_all(scheduler) -> None:
    scheduler.tf_actuator.chosen = False
    with scheduler._tf_chosen():
        assert scheduler.disagg_decode_prealloc_queue.names == ["a", "b", "c", "d"]
    assert scheduler.disagg_decode_prealloc_queue.polls == 0


def test_without_a_choice_paused_streams_go_first(scheduler) -> None:
    """As what SGLang has retracted does: nothing new is taken in while it waits."""
    paused = Request("p")
    scheduler.tf_pauser.paused[paused] = None
    scheduler.tf_actuator = SimpleNamespace(chosen=False, offered=[paused])
    with scheduler._tf_chosen():
        assert scheduler.disagg_decode_prealloc_queue.names == ["d"]
    scheduler.tf_actuator.offered = []  # its reader rests
    with scheduler._tf_chosen():
        assert scheduler.disagg_decode_prealloc_queue.names == ["a", "b", "c", "d"]


def test_reserves_are_the_operators_unless_the_policy_decides(scheduler) -> None:
    queue = scheduler.disagg_decode_prealloc_queue
    scheduler.tf_actuator.growth = SimpleNamespace(headroom=24)
    scheduler._tf_reserve()
    assert queue.num_reserved_decode_tokens == 24
    scheduler.tf_pauser.may_pause = False
    scheduler._tf_reserve()
    assert queue.num_reserved_decode_tokens == 512, "the host is full"
    scheduler.tf_pauser.may_pause = True
    scheduler.tf_actuator.chosen = False
    scheduler._tf_reserve()
    assert queue.num_reserved_decode_tokens == 512


@pytest.mark.parametrize(
    ("ratio", "total", "page", "streams"),
    [(2.0, 0, 1, math.inf), (None, 1000, 1, 15), (6.0, 2304, 256, 27)],
)
def test_as_many_streams_are_kept_as_hicache_has_windows_for(
    scheduler, ratio, total, page, streams
) -> None:
    """A window of 128 tokens is in two pages, if these are large. No ratio: there is a size."""
    scheduler.tf_actuator = SimpleNamespace(pools=SimpleNamespace(window_total=total))
    scheduler.tree_cache = SimpleNamespace(cache_controller=None)
    scheduler.max_total_num_tokens = 4096
    scheduler.page_size, scheduler.sliding_window_size = page, 128
    scheduler.server_args = SimpleNamespace(hicache_ratio=ratio)
    assert scheduler._tf_host_streams() == streams


@pytest.mark.parametrize("loses", [True, False])
def test_what_sglang_retracts_waits_for_the_prefill_server_only_if_it_is_lost(
    monkeypatch, scheduler, loses
) -> None:
    asked, held = [], []
    monkeypatch.setattr(
        Scheduler, "_add_request_to_queue", lambda _self, req, is_retracted: asked.append(req)
    )
    scheduler.tf_pauser.retraction_loses = loses
    scheduler.tf_pauser.hold = held.append
    scheduler.tf_paused_time = SimpleNamespace(begin=lambda _req: None)
    scheduler.tf_clock = SimpleNamespace(now=1.0)
    req, table = scheduler.requests[0], scheduler.tf_table
    table.move(req, Phase.RUNNING, 0.5)
    scheduler._add_request_to_queue(req, is_retracted=True)
    assert (asked, held) == (([req], []) if loses else ([], [req]))
    assert table.phases.is_in(table.slot(req), Phase.WAITING) == loses


def test_an_arrival_is_the_newest_of_the_queue(scheduler) -> None:
    assert scheduler._tf_newest([]) is scheduler.requests[3]
    scheduler.disagg_decode_prealloc_queue.queue.clear()
    assert scheduler._tf_newest([object()]) is None
    assert Phase.WAITING.value == scheduler.tf_table.phases.phase[0]


def test_what_waits_to_be_computed_again_can_be_aborted(monkeypatch, scheduler) -> None:
    told: list[tuple[str, list[int]]] = []
    scheduler.output_streamer = SimpleNamespace(
        stream_output=lambda reqs, _logprobs: told.extend((r.rid, r.output_ids) for r in reqs)
    )
    released: list[str] = []
    for req in scheduler.requests:
        req.return_logprob, req.to_finish = False, None
        req.pd_rebootstrap_forced_output_id = 3
        req.update_finish_state = lambda _count: None
        req.time_stats = SimpleNamespace(set_completion_time=lambda: None)
    held = scheduler.disagg_decode_prealloc_queue
    held.held_rebootstrap_reqs = scheduler.requests[:3]

    def sglangs_own(self: Any, asked: str) -> None:
        (batch,) = self._collect_inflight_batches()
        for req in batch.reqs:
            if req.rid == asked:
                req.to_finish = "aborted"

    monkeypatch.setattr(TokenFlowScheduler, "_collect_inflight_batches", lambda self: [])
    monkeypatch.setattr(TokenFlowScheduler, "abort_request", sglangs_own)
    monkeypatch.setattr(decode_scheduler, "ScheduleBatch", lambda reqs: SimpleNamespace(reqs=reqs))
    monkeypatch.setattr(
        TokenFlowDecodeScheduler,
        "_release_aborted_request",
        lambda self, req: released.append(req.rid),
    )
    scheduler.abort_request("b")
    assert told == [("b", [1, 2, 3])], "with the token that SGLang had put aside"
    assert released == ["b"]
    assert [req.rid for req in held.held_rebootstrap_reqs] == ["a", "c"]


def test_a_server_with_paused_streams_is_not_idle(monkeypatch, scheduler) -> None:
    """Their only KV is in the pool that a flush empties, whatever waits beside them."""
    monkeypatch.setattr(TokenFlowScheduler, "is_fully_idle", lambda self, *_how: True)
    assert scheduler.is_fully_idle(ignore_waiting=True)
    scheduler.tf_pauser.paused[Request("p")] = None
    assert not scheduler.is_fully_idle(ignore_waiting=True)


class Loads:
    """Copies of these streams are under way."""

    def __init__(self, *coming: Request) -> None:
        self.under_way = dict.fromkeys(coming)
        self.told: list[str] = []

    def coming(self, *, alone: bool) -> dict[Any, None]:
        if alone:
            self.settle()
        return self.under_way

    def settle(self) -> None:
        self.told.append("settled")
        self.under_way.clear()

    def end(self, request: Request) -> None:
        self.told.append(request.rid)


@pytest.fixture
def joining(monkeypatch, scheduler) -> Any:
    """A scheduler whose streams wait for the batch; what joins it is the batch that it returns."""

    def sglangs_own(self: Any, _running: Any) -> Any:
        joined, self.waiting_queue = self.waiting_queue, []
        return SimpleNamespace(reqs=joined) if joined else None

    monkeypatch.setattr(TokenFlowScheduler, "get_new_prebuilt_batch", sglangs_own)
    scheduler.tf_paused_time = SimpleNamespace(end=lambda _req: None)
    scheduler.tf_clock = SimpleNamespace(now=1.0)
    scheduler.waiting_queue = scheduler.requests[:3]
    return scheduler


@pytest.mark.parametrize(("alone", "joins"), [(False, ["a", "c"]), (True, ["a", "b", "c"])])
def test_a_stream_whose_kv_is_on_its_way_joins_later(joining, alone, joins) -> None:
    joining.tf_loads = Loads(joining.requests[1])
    batch = joining.get_new_prebuilt_batch(SimpleNamespace(is_empty=lambda: alone))
    assert [req.rid for req in batch.reqs] == joins
    left = [req for req in joining.requests[:3] if req.rid not in joins]
    assert joining.waiting_queue == left, "for SGLang it waits: it can be aborted, say"


def test_with_tensors_all_join(joining) -> None:
    batch = joining.get_new_prebuilt_batch(SimpleNamespace(is_empty=lambda: False))
    assert len(batch.reqs) == 3
    assert not joining.waiting_queue


def test_copies_end_before_memory_is_given_away(monkeypatch, joining) -> None:
    joining.tf_loads = loads = Loads()
    joining.tf_pauser.discard = lambda req: loads.told.append(f"discarded {req.rid}")
    for name in ("_release_aborted_request", "pause_generation"):
        monkeypatch.setattr(
            TokenFlowScheduler, name, lambda _self, _given: loads.told.append("SGLang's own")
        )
    joining._release_aborted_request(joining.requests[0])
    assert loads.told == ["a", "discarded a", "SGLang's own"]
    loads.told.clear()
    joining.pause_generation(SimpleNamespace(mode="retract"))
    assert loads.told == ["settled", "SGLang's own"]
