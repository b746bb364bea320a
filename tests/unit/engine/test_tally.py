"""What readers got, summed per class and handed on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fakes.sglang import Request
from tracked import track

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.engine.telemetry.prometheus import Recorder
from tokenflow_sgl.engine.telemetry.tally import Tally
from tokenflow_sgl.engine.terms import NOT_STREAMED
from tokenflow_sgl.lifecycle.first_text import LOOKS
from tokenflow_sgl.lifecycle.reader_updates import set_rate
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


class Told(Recorder):
    def __init__(self) -> None:
        self.counts: dict[tuple[str, str], float] = {}
        self.seen: dict[tuple[str, str], list[float]] = {}

    def count(self, name: str, amount: float, **labels: str) -> None:
        key = name, labels.get("qos_class", "")
        self.counts[key] = self.counts.get(key, 0.0) + amount

    def observe(self, name: str, values: Any, counts: Any = None, **labels: str) -> None:
        times = np.ones(len(values)) if counts is None else counts
        self.seen.setdefault((name, labels.get("qos_class", "")), []).extend(
            np.repeat(values, times.astype(int)).tolist()
        )


@pytest.fixture
def served():
    """Two classes of readers of 10 and 20 tokens/s, all running; and how to give them tokens."""
    table: StreamTable[Request] = StreamTable(LimitLengths())
    told = Told()
    tally = Tally(table, told)
    requests = [Request(made=0) for _ in range(3)]
    for request, (name, rate) in zip(
        requests, (("slow", 10.0), ("fast", 20.0), ("slow", 10.0)), strict=True
    ):
        track(table, request, prompt=5, limit=100, rate=rate, qos_class=name, arrival=1.0, now=1.0)
        table.move(request, Phase.RUNNING, 1.0)

    def give(now: float, *tokens: int) -> None:
        for request, count in zip(requests, tokens, strict=True):
            request.output_ids += [7] * count
        tally.add(table.collect(now), now)

    return tally, told, give


def test_first_tokens_and_gaps_by_class(served) -> None:
    tally, told, give = served
    give(1.5, 1, 2, 0)
    give(1.6, 1, 0, 0)
    give(1.8, 0, 3, 1)
    assert not told.counts and not told.seen, "only when it is handed on"
    tally.hand_on()
    assert told.seen["ttft_seconds", "slow"] == pytest.approx([0.5, 0.8])
    assert told.seen["ttft_seconds", "fast"] == pytest.approx([0.5])
    assert told.seen["tbt_seconds", "slow"] == pytest.approx([0.1])
    # Two tokens together, then three: gaps of 0 within, and one between.
    assert sorted(told.seen["tbt_seconds", "fast"]) == pytest.approx([0.0, 0.0, 0.0, 0.3])
    assert told.counts["output_tokens_total", "slow"] == 3
    assert told.counts["output_tokens_total", "fast"] == 5


def test_every_token_has_a_gap_but_the_first(served) -> None:
    tally, told, give = served
    rng = np.random.default_rng(0)
    given = np.zeros(3, dtype=int)
    now = 1.0
    for _ in range(50):
        now += float(rng.random())
        tokens = rng.integers(0, 4, 3)
        given += tokens
        give(now, *tokens.tolist())
    tally.hand_on()
    gaps = sum(len(told.seen["tbt_seconds", name]) for name in ("slow", "fast"))
    assert gaps == given.sum() - 3


def test_stalls_go_to_the_class_of_their_reader(served) -> None:
    tally, told, give = served
    give(1.0, 1, 1, 1)
    give(2.0, 0, 1, 1)  # due after 0.05 s and after 0.1 s
    tally.hand_on()
    assert told.counts["stalls_total", "fast"] == told.counts["stalls_total", "slow"] == 1
    assert told.counts["stall_seconds_total", "fast"] == pytest.approx(0.95)
    assert told.counts["stall_seconds_total", "slow"] == pytest.approx(0.9)


def test_what_was_handed_on_is_not_handed_on_again(served) -> None:
    tally, told, give = served
    give(1.5, 1, 1, 1)
    tally.hand_on()
    before = dict(told.counts), {key: list(values) for key, values in told.seen.items()}
    tally.hand_on()
    give(1.6, 0, 0, 0)
    tally.hand_on()
    assert (told.counts, told.seen) == before


def test_requests_that_do_not_stream_have_tokens_and_no_reader(served) -> None:
    tally, told, give = served
    table = tally._table
    unread = Request(made=0)
    track(
        table,
        unread,
        prompt=5,
        limit=9,
        rate=1000.0,
        qos_class=NOT_STREAMED.name,
        reader=NOT_STREAMED.reader,
        arrival=1.0,
        now=1.0,
        streaming=False,
    )
    table.move(unread, Phase.RUNNING, 1.0)
    unread.output_ids += [7] * 4
    give(3.0, 1, 1, 1)
    tally.hand_on()
    named = NOT_STREAMED.name
    assert told.counts[("output_tokens_total", named)] == 4.0
    assert {name for name, of in told.counts if of == named} == {"output_tokens_total"}
    assert not [name for name, of in told.seen if of == named]


@pytest.mark.parametrize("reader", [True, False])
def test_a_class_without_readers_has_latencies_and_no_stalls(served, reader) -> None:
    tally, told, give = served
    table, program = tally._table, Request(made=0)
    track(
        table,
        program,
        prompt=5,
        limit=9,
        rate=50.0,
        qos_class="agents",
        arrival=1.0,
        now=1.0,
        reader=reader,
    )
    table.move(program, Phase.RUNNING, 1.0)
    for now in (3.0, 9.0):
        program.output_ids += [7] * 3
        give(now, 1, 1, 1)
        tally.hand_on()
    for _ in range(LOOKS):
        tally.hand_on()
    counted = {name for name, of in told.counts if of == "agents"}
    of_readers = {"effective_tokens_total", "stalls_total", "stall_seconds_total"}
    assert counted - of_readers == {"output_tokens_total", "reasoning_tokens_total"}
    assert counted & of_readers == (of_readers if reader else set())
    assert {name for name, of in told.seen if of == "agents"} == {
        *("ttft_seconds", "ttfvt_seconds", "tbt_seconds")
    }


@pytest.mark.parametrize("back", [None, 2.6])
def test_a_stall_is_counted_until_its_reader_looks_away(served, back) -> None:
    """Though no token comes with it; whether the reader is back by then or not."""
    tally, told, give = served
    table = tally._table
    slow = table.requests(Phase.RUNNING)[0]
    give(1.0, 1, 1, 1)
    set_rate(table, slow, 0.0, 2.5)  # due after 0.1 s
    if back is not None:
        set_rate(table, slow, 10.0, back)
    give(2.6, 0, 0, 0)
    give(9.0 if back is None else 2.6, 1, 0, 0)
    tally.hand_on()
    assert told.counts["stall_seconds_total", "slow"] == pytest.approx(1.4)
    assert told.counts["stalls_total", "slow"] == 1
    assert told.counts["stalls_total", "fast"] == 0
    assert table.readers.stall_seconds[table.slot(slow)] == pytest.approx(1.4)


def test_a_stall_that_is_given_up_in_a_pause_is_counted(served) -> None:
    tally, told, give = served
    table = tally._table
    slow = table.requests(Phase.RUNNING)[0]
    give(1.0, 1, 1, 1)
    table.move(slow, Phase.PAUSED, 1.0)
    give(1.1, 0, 1, 1)
    set_rate(table, slow, 0.0, 2.1)
    give(2.2, 0, 0, 0)
    tally.hand_on()
    assert told.counts["stall_seconds_total", "slow"] == pytest.approx(1.0)


def test_a_stall_that_is_given_up_by_a_stream_that_ends_is_counted(served) -> None:
    tally, told, give = served
    table = tally._table
    slow = table.requests(Phase.RUNNING)[0]
    give(1.0, 1, 1, 1)
    set_rate(table, slow, 0.0, 2.1)
    tally.add_given_up(table.slot(slow))
    table.forget(slow, cut_off=True)
    tally.hand_on()
    assert told.counts["stall_seconds_total", "slow"] == pytest.approx(1.0)
    assert told.counts["stalls_total", "slow"] == 1
    tally.hand_on()
    assert told.counts["stalls_total", "slow"] == 1, "once"


def test_a_stall_that_the_class_tolerates_is_none(served) -> None:
    tally, told, give = served
    table = tally._table
    for name, tolerance in (("patient", 5.0), ("strict", 0.0)):
        request = Request(made=0)
        track(
            table,
            request,
            prompt=5,
            limit=9,
            rate=10.0,
            qos_class=name,
            arrival=1.0,
            now=1.0,
            tolerance=tolerance,
        )
        table.move(request, Phase.RUNNING, 1.0)
        request.output_ids += [7]
    give(3.0, 1, 1, 1)
    for request in table.requests(Phase.RUNNING)[-2:]:
        request.output_ids += [7]
    give(6.0, 1, 1, 1)
    tally.hand_on()
    assert told.counts[("stalls_total", "patient")] == 0.0
    assert told.counts[("stalls_total", "strict")] == 1.0
    assert told.counts[("stall_seconds_total", "patient")] == pytest.approx(2.9)
