"""What pauses streams on a decode server: copies first, and only what is not lost by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fakes.engine import add, book_of
from fakes.sglang import Arrivals, Batch, Request, Scheduler, Tree

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.decode_server import decode_pauser
from tokenflow_sgl.engine.decode_server.decode_pauser import DecodePauser
from tokenflow_sgl.engine.unsupported import undisturbed_without_prefill

PAGE = 16


@pytest.fixture
def told() -> list[tuple[str, str]]:
    """What was done to which request."""
    return []


@pytest.fixture
def host() -> Any:
    return SimpleNamespace(room=1000, backend="host_pool", loses=False)


@pytest.fixture
def pauser(monkeypatch, told, host) -> DecodePauser:
    def backup(request: Any, *_args: Any) -> bool:
        if host.room < request.seqlen:
            return False
        host.room -= request.seqlen
        request.kv.retraction_backup = object()
        told.append(("kept", request.rid))
        return True

    def discard(request: Any, *_args: Any) -> None:
        host.room += request.seqlen
        request.kv.retraction_backup = None
        told.append(("discarded", request.rid))

    def release(*, req: Any, **_given: Any) -> None:
        req.retraction_count += 1
        told.append(("released", req.rid))

    monkeypatch.setattr(decode_pauser, "backup_kv_cache", backup)
    monkeypatch.setattr(decode_pauser, "discard_kv_cache_backup", discard)
    monkeypatch.setattr(decode_pauser, "release_req", release)
    monkeypatch.setattr(decode_pauser, "dsv4_needs_rebootstrap", lambda _allocator: host.loses)
    monkeypatch.setattr(
        decode_pauser,
        "get_disagg",
        lambda: SimpleNamespace(disaggregation_decode_retraction_backup=host.backend),
    )
    pool = SimpleNamespace(available_size=lambda: host.room)
    scheduler = Scheduler(
        tree_cache=Tree(cache_controller=SimpleNamespace(mem_pool_host=pool)),
        req_to_token_pool=None,
        page_size=PAGE,
        future_map=SimpleNamespace(need_topk=False, need_hidden_states=False),
        disagg_decode_prealloc_queue=Arrivals(),
    )
    return DecodePauser(scheduler, book_of(scheduler, now=1.0), capacity=500, most=MOST)


@pytest.fixture
def stream(pauser) -> Any:
    """Makes a request that runs, of so many tokens."""

    def made(rid: str, tokens: int = 100) -> Request:
        request = Request(rid, prompt=tokens - 2, made=2)
        book = pauser._book
        add(book, request)
        book.runs(request)
        return request

    return made


def phase(pauser: DecodePauser, request: Any) -> Phase:
    table = pauser._book.table
    return Phase(int(table.phases.phase[table.slot(request)]))


def test_kv_is_kept_before_memory_is_given_back(pauser, told, stream) -> None:
    request = stream("a")
    pauser.preempt([request], Batch(request), set())
    assert told == [("kept", "a"), ("released", "a")]
    assert phase(pauser, request) is Phase.PAUSED
    assert request in pauser.paused
    assert request.retraction_count == 0, "paused is not retracted"


def test_what_the_host_has_no_room_for_stays(pauser, told, host, stream) -> None:
    """It joins the batch again with the row that it has."""
    host.room = 50
    request = stream("a")
    pauser._book.table.move(request, Phase.DRAINING, 1.0)
    pauser.preempt([request], Batch(request), set())
    assert told == []
    assert not pauser.paused
    assert pauser._scheduler.waiting_queue == [request]
    assert phase(pauser, request) is Phase.RUNNING


MOST = 3
"""Streams that may be paused at once, where SGLang sets no limit."""
WHOLE = 8 * PAGE
"""What a stream of 100 tokens takes: seven pages, and one that it may begin."""


def request(rid: str, tokens: int = 100) -> Request:
    return Request(rid, prompt=tokens - 2, made=2)


def accepted(pauser, count: int = 9) -> int:
    return sum(pauser.accepts(request(str(number))) for number in range(count))


def test_a_pass_accepts_as_many_as_the_host_has_room_for(pauser, host) -> None:
    host.room = 2 * WHOLE
    pauser.begin([])
    assert accepted(pauser) == 2
    pauser.begin([request("r"), request("short", 10)])
    assert pauser.may_pause
    assert accepted(pauser) == 1, "SGLang ends what it retracts if there is no room for it"
    assert not pauser.may_pause
    pauser.draining.append(request("d"))
    pauser.begin([])
    assert accepted(pauser) == 1, "what drains comes first"


def test_tensors_have_a_limit_of_ours(pauser, host, stream) -> None:
    host.backend = "cpu_tensor"
    pauser.begin([])
    assert accepted(pauser) == 500 // WHOLE
    pauser.preempt([stream("p")], Batch(), set())
    pauser.begin([])
    assert accepted(pauser) == 500 // WHOLE - 1


def test_no_more_are_paused_there_than_their_windows_allow(pauser, host, stream) -> None:
    host.backend = "cpu_tensor"
    pauser.begin([])
    short = [stream(name, 10) for name in "abcd"]
    assert [pauser.accepts(each) for each in short] == [True, True, True, False]
    assert not pauser.may_pause
    pauser.preempt(short[:2], Batch(), set())
    pauser.begin([])
    assert pauser.may_pause
    assert [pauser.accepts(each) for each in short[2:]] == [True, False]
    host.backend = "host_pool"
    assert pauser.accepts(short[3]), "its own size counts"


def test_what_sglang_would_not_keep_is_copied_all_the_same(pauser, told, stream) -> None:
    pauser.retraction_loses = True
    request: Any = stream("v")
    request.offload_kv_cache = lambda *_memory: told.append(("copied", "v"))
    pauser.preempt([request], Batch(), set())
    assert told == [("copied", "v"), ("released", "v")]
    assert request in pauser.paused


def test_where_the_weights_change_no_kv_is_kept(pauser, told, host, stream) -> None:
    paused, drains, ended = stream("p"), stream("d"), stream("e")
    pauser.preempt([paused], Batch(), set())
    pauser.preempt([drains, ended], Batch(), {drains, ended})
    ended.finished_reason = "stop"
    told.clear()
    pauser.drop_draining()
    assert told == [("released", "d"), ("discarded", "p")]
    assert not pauser.paused and not pauser.draining
    assert host.room == 1000
    held = pauser._scheduler.disagg_decode_prealloc_queue.held_rebootstrap_reqs
    assert held == [drains, paused], "a prefill server computes them"
    for each in held:
        assert each.pd_rebootstrap_in_progress
        assert len(each.output_ids) == 1
        assert each.pd_rebootstrap_forced_output_id == 1, "their last token is computed again"


@pytest.mark.parametrize(
    ("given", "disturbed"),
    [
        ({}, True),
        ({"frequency_penalty": 0.5}, False),
        ({"presence_penalty": -0.5}, False),
        ({"repetition_penalty": 1.1}, False),
        ({"min_new_tokens": 3}, False),
    ],
)
def test_requests_with_penalties_are_not_paused(given, disturbed) -> None:
    plain = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
    }
    sampled = SimpleNamespace(sampling_params=SimpleNamespace(**{**plain, **given}))
    assert (undisturbed_without_prefill(sampled) is None) == disturbed
