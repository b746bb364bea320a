"""What the front end tells of live streams, and what an operator may send instead."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace

import pytest
from ranks import Ranks
from sglang.srt.managers.io_struct import (
    FlushCacheReqInput,
    SetInternalStateReq,
    msgpack_decode,
    msgpack_encode,
)
from tracked import Request, running

from tokenflow_sgl.engine.frontend.messenger import Messenger
from tokenflow_sgl.engine.stream_messages import (
    AWAITED,
    PASSED_ON,
    RATE,
    WEIGHT,
    StreamChange,
    changes_message,
    flush_waits,
    is_ours,
    passed_on_message,
    take,
)
from tokenflow_sgl.lifecycle.rest_ends import end_rests
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


def rate_message(rid: str, rate: float) -> SetInternalStateReq:
    return changes_message({rid: StreamChange(rate=rate)})


class Server:
    """A table with one running stream, `mine`, that has sent 30 tokens at second 3."""

    def __init__(self) -> None:
        self.table: StreamTable[Request] = StreamTable(LimitLengths(), capacity=4)
        self.stream = running(self.table)
        self.slot = self.table.slot(self.stream)
        self.stream.produce(30)
        self.table.collect(3.0)

    def take(self, message: SetInternalStateReq, now: float = 4.0) -> bool:
        message = msgpack_decode(msgpack_encode(message))  # as between SGLang's processes
        assert is_ours(message)
        known = {"mine": self.stream}
        return bool(take(message, known, (), self.table, now).updated)

    def unread(self, now: float) -> float:
        order = self.table.order()
        return float(self.table.readers.buffer_tokens(order, now)[0])


@pytest.fixture
def server() -> Server:
    return Server()


def test_what_sglang_may_be_told_is_none_of_ours() -> None:
    assert not is_ours(SetInternalStateReq(server_args={"pp_max_micro_batch_size": 8}))


def test_a_rate_holds_from_now_on(server) -> None:
    before = server.table.streams(()).rate[0]
    assert server.take(rate_message("mine", 4.0))
    assert (before, server.table.streams(()).rate[0]) == (10.0, 4.0)
    assert server.unread(4.0) == 20.0
    assert server.unread(5.0) == 16.0


def test_a_reader_rests_and_is_back(server) -> None:
    assert server.take(rate_message("mine", 0))
    seen = server.table.streams(())
    assert seen.resting is not None and seen.resting[0] and seen.next_due[0] == math.inf
    assert server.take(rate_message("mine", 10.0), now=60.0)
    assert not server.table.streams(()).resting[0]
    assert server.unread(60.0) == 20.0


@pytest.mark.parametrize("rate", [-1.0, 0.05, 1001.0, math.nan, math.inf])
def test_a_rate_that_is_none_is_not_taken(server, rate) -> None:
    assert not server.take(rate_message("mine", rate))
    assert server.table.streams(()).rate[0] == 10.0


def test_a_weight_is_in_the_next_state(server) -> None:
    other = running(server.table)
    assert server.table.streams(()).weight is None, "and settled"
    assert server.take(changes_message({"mine": StreamChange(weight=4.0)}))
    assert server.table.streams(()).weight.tolist() == [4.0, 1.0]
    assert server.unread(4.0) == 20.0, "the rate is as it was"
    assert server.table.weight[server.table.slot(other)] == 1.0
    assert server.take(changes_message({"mine": StreamChange(weight=1.0)}))
    assert server.table.streams(()).weight is None


def test_rate_and_weight_come_together(server) -> None:
    assert server.take(changes_message({"mine": StreamChange(rate=0.0, weight=0.5)}))
    seen = server.table.streams(())
    assert (seen.resting[0], seen.weight[0]) == (True, 0.5)


def test_a_weight_wakes_a_policy_that_was_idle(server) -> None:
    """An idle decision stands while nothing changes; a claim that changes is something."""
    version = server.table.phases.version
    server.take(changes_message({"mine": StreamChange(weight=4.0)}))
    assert server.table.phases.version > version


@pytest.mark.parametrize("weight", [0, -1.0, 0.05, 10.5, math.nan, math.inf])
def test_a_weight_that_is_none_is_not_taken(server, weight) -> None:
    assert not server.take(changes_message({"mine": StreamChange(weight=weight)}))
    assert server.table.streams(()).weight is None


@pytest.mark.parametrize(
    "said",
    [
        {"tokenflow_rate:other": 5},
        {"tokenflow_rate": 5},
        {"tokenflow_weight:other": 5},
        {"tokenflow_weight": 5},
        {"tokenflow_speed:mine": 5},
        {"tokenflow_passed_on:mine": 2.5},
        {"tokenflow_passed_on:mine": -2},
        {"tokenflow_passed_on:mine": 1 << 63},
    ],
)
def test_what_is_not_understood_changes_nothing(server, said) -> None:
    assert not server.take(SetInternalStateReq(server_args=said))
    assert server.unread(4.0) == 20.0


@pytest.mark.parametrize("value", ["20", None, True, [20], math.nan, 10**400])
@pytest.mark.parametrize("kind", [RATE, WEIGHT, PASSED_ON, AWAITED])
def test_a_value_of_another_type_changes_nothing(server, kind, value) -> None:
    """SGLang decodes messages by their types; where it pickles them it does not."""
    message = SetInternalStateReq(server_args={kind + "mine": value})
    answer = take(message, {"mine": server.stream}, (), server.table, 4.0)
    assert not answer.updated and not server.table.rests.awaited
    assert server.unread(4.0) == 20.0


def test_text_that_is_held_back_is_not_read(server) -> None:
    # Of the thirty tokens five have reached the client, which had read them by second 3.5.
    assert server.take(passed_on_message({"mine": 5, "gone": 3})) is False  # one of them is gone
    assert server.unread(4.0) == 0.0
    assert server.table.readers.slack(server.table.order(), 4.0)[0] == pytest.approx(-0.5)
    server.stream.produce(10)
    server.table.collect(4.5)
    assert server.unread(4.5) == 0.0, "more of the same"
    assert server.take(passed_on_message({"mine": None}), now=5.0)
    server.table.collect(5.0)
    assert server.unread(5.0) == 35.0
    assert server.table.readers.stall_seconds[server.slot] == pytest.approx(1.5)


def test_held_text_comes_though_the_stream_is_paused_meanwhile(server) -> None:
    from tokenflow_sgl.contract import Phase

    server.take(passed_on_message({"mine": 5}))
    server.table.move(server.stream, Phase.PAUSED, 4.1)
    server.table.collect(4.2)
    server.take(passed_on_message({"mine": None}), now=5.0)
    server.table.collect(5.0)
    assert server.unread(5.0) == 25.0


def test_of_reasoning_nothing_is_read_anyway() -> None:
    table: StreamTable[Request] = StreamTable(
        LimitLengths(), capacity=4, reasoning=lambda _req, _since: 20
    )
    stream = running(table, thinking=True)
    stream.produce(30)
    table.collect(3.0)
    take(passed_on_message({"mine": 25}), {"mine": stream}, (), table, 3.0)
    assert table.readers.delivered[table.slot(stream)] == 5


def test_a_request_without_a_reader_has_no_rate(server) -> None:
    server.stream.stream = False
    assert not server.take(rate_message("mine", 4.0))


@pytest.mark.parametrize(
    ("timeout", "until"), [(2.5, 6.5), (math.inf, 2e9), (None, 4.0), (0.0, 4.0), (math.nan, 4.0)]
)
def test_a_flush_ends_rests_for_as_long_as_it_waits(server, timeout, until) -> None:
    server.take(rate_message("mine", 0))
    flush_waits([FlushCacheReqInput(timeout_s=timeout)], server.table, 4.0)
    for now, rests in ((4.0, until == 4.0), (min(until, 1e9), until < 1e9)):
        end_rests(server.table, now)
        assert server.table.streams(()).resting[0] == rests
    server.table.forget(server.stream, cut_off=False)
    end_rests(server.table, 1e9)
    assert not server.table.rests.awaited


def test_a_second_flush_waits_longer_than_one_that_gave_up(server) -> None:
    server.take(rate_message("mine", 0))
    flush_waits([FlushCacheReqInput(timeout_s=1.0)], server.table, 4.0)
    flush_waits([FlushCacheReqInput(timeout_s=9.0)], server.table, 4.9)
    end_rests(server.table, 5.0)
    assert not server.table.streams(()).resting[0]


@pytest.mark.parametrize(
    ("said", "understood"),
    [
        ({"tokenflow_awaited:one:": 1}, True),
        ({"tokenflow_awaited:one": 1}, True),
        ({"tokenflow_awaited:one:theirs": 1}, True),
        ({"tokenflow_awaited:one:": 0}, True),
        ({"tokenflow_awaited:one:": 2}, False),
        ({"tokenflow_awaited:": 1}, False),
        ({"tokenflow_awaited": 1}, False),
    ],
)
def test_a_wait_is_noted_and_nothing_that_only_looks_like_one(server, said, understood) -> None:
    server.take(rate_message("mine", 0))
    assert server.take(SetInternalStateReq(server_args=said)) is understood
    ends = understood and all(value == 1 for value in said.values()) and "theirs" not in str(said)
    assert server.table.streams(()).resting[0] == (not ends)


@pytest.mark.parametrize(
    ("ranks", "compiling", "alone"),
    [
        ([("mine",)], [], True),
        ([("mine", "mi", "other")], [], True),
        ([("mine", "mine-too")], [], False),
        ([("mine",), ("other",)], [], True),
        ([("mine",), ("mine-too",)], [], False),
        ([("mine-too",), ("mine",)], [], False),
        ([("mine",), ()], ["mine-too"], False),
        ([("mine",), ()], ["other"], True),
        ([(), ()], ["mine"], True),
        ([("other",), ()], [], False),
    ],
)
def test_a_stream_is_alone_if_on_no_rank_another_id_begins_like_its_own(
    ranks, compiling, alone
) -> None:
    manager = Ranks(*ranks)
    manager.ranks[-1].compiling = [SimpleNamespace(rid=rid) for rid in compiling]
    assert asyncio.run(Messenger(manager).alone("mine")) is alone
    assert len(manager.heard) == 1
