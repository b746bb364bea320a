"""What pauses streams on a decode server: copies first, and only what is not lost by it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from decode_requests import Request

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
        return True

    def discard(request: Any, *_args: Any) -> None:
        host.room += request.seqlen
        request.kv.retraction_backup = None

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
    scheduler = SimpleNamespace(
        tree_cache=SimpleNamespace(cache_controller=SimpleNamespace(mem_pool_host=pool)),
        req_to_token_pool=None,
        token_to_kv_pool_allocator=None,
        page_size=PAGE,
        enable_overlap=True,
        future_map=SimpleNamespace(need_topk=False, need_hidden_states=False),
    )

    def say(what: str) -> Any:
        return lambda request: told.append((what, request.rid))

    told_of = (say("paused"), say("stays"), say("lost"))
    return DecodePauser(scheduler, *told_of, capacity=500, most=MOST)


def batch() -> Any:
    return SimpleNamespace(filter_batch=lambda reqs_to_exclude: None, batch_is_full=True)


def test_kv_is_kept_before_memory_is_given_back(pauser, told) -> None:
    request = Request("a")
    pauser.preempt([request], batch(), set())
    assert told == [("released", "a"), ("paused", "a")]
    assert request in pauser.paused
    assert request.retraction_count == 0, "paused is not retracted"


def test_what_the_host_has_no_room_for_stays(pauser, told, host) -> None:
    host.room = 50
    pauser.preempt([Request("a")], batch(), set())
    assert told == [("stays", "a")]
    assert not pauser.paused


MOST = 3
"""Streams that may be paused at once, where SGLang sets no limit."""
WHOLE = 8 * PAGE
"""What a stream of 100 tokens takes: seven pages, and one that it may begin."""


def accepted(pauser, count: int = 9) -> int:
    return sum(pauser.accepts(Request(str(number))) for number in range(count))


def test_a_pass_accepts_as_many_as_the_host_has_room_for(pauser, host) -> None:
    host.room = 2 * WHOLE
    pauser.begin([])
    assert accepted(pauser) == 2
    pauser.begin([Request("r"), Request("short", 10)])
    assert pauser.may_pause
    assert accepted(pauser) == 1, "SGLang ends what it retracts if there is no room for it"
    assert not pauser.may_pause
    pauser.draining.append(Request("d"))
    pauser.begin([])
    assert accepted(pauser) == 1, "what drains comes first"


def test_tensors_have_a_limit_of_ours(pauser, host) -> None:
    host.backend = "cpu_tensor"
    pauser.begin([])
    assert accepted(pauser) == 500 // WHOLE
    pauser.preempt([Request("p")], batch(), set())
    pauser.begin([])
    assert accepted(pauser) == 500 // WHOLE - 1


def test_no_more_are_paused_there_than_their_windows_allow(pauser, host) -> None:
    host.backend = "cpu_tensor"
    pauser.begin([])
    short = [Request(name, 10) for name in "abcd"]
    assert [pauser.accepts(each) for each in short] == [True, True, True, False]
    assert not pauser.may_pause
    pauser.preempt(short[:2], batch(), set())
    pauser.begin([])
    assert pauser.may_pause
    assert [pauser.accepts(each) for each in short[2:]] == [True, False]
    host.backend = "host_pool"
    assert pauser.accepts(short[3]), "its own size counts"


def test_what_sglang_would_not_keep_is_copied_all_the_same(pauser, told) -> None:
    pauser.retraction_loses = True
    request: Any = Request("v")
    request.offload_kv_cache = lambda *_memory: told.append(("copied", "v"))
    pauser.preempt([request], batch(), set())
    assert told == [("copied", "v"), ("released", "v"), ("paused", "v")]


def test_where_the_weights_change_no_kv_is_kept(pauser, told, host) -> None:
    paused, drains, ended = Request("p"), Request("d"), Request("e")
    pauser.preempt([paused], batch(), set())
    pauser.preempt([drains, ended], batch(), {drains, ended})
    ended.done = True
    told.clear()
    pauser.drop_draining()
    assert told == [("released", "d"), ("lost", "d"), ("lost", "p")]
    assert not pauser.paused and not pauser.draining
    assert host.room == 1000


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
    request = SimpleNamespace(sampling_params=SimpleNamespace(**{**plain, **given}))
    assert (undisturbed_without_prefill(request) is None) == disturbed
