"""Rests have an end: a total for each stream, and none where something waits for streams."""

from __future__ import annotations

import math

import pytest
from tracked import Request, running, track

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.reader_updates import LEAST_REST, set_rate
from tokenflow_sgl.lifecycle.rest_ends import (
    any_waits,
    await_ends,
    end_rests,
    no_longer_awaited,
    use_adapter,
)
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths

LONGEST = 60.0


@pytest.fixture
def table() -> StreamTable[Request]:
    table: StreamTable[Request] = StreamTable(LimitLengths(), capacity=4)
    table.rests.longest = LONGEST
    return table


def rests(table: StreamTable[Request], stream: Request) -> bool:
    """Whether a policy would be told so."""
    return bool(table.streams(()).resting[table.order().tolist().index(table.slot(stream))])


def due(table: StreamTable[Request]) -> list[float]:
    return table.streams(()).next_due.tolist()


def ended(table: StreamTable[Request]) -> dict[str, int]:
    return dict(table.rests.take_ended())


def test_a_paused_stream_waits_unless_it_rests(table) -> None:
    one, other = running(table), running(table)
    assert not any_waits(table)
    table.move(one, Phase.PAUSED, 3.0)
    assert any_waits(table)
    set_rate(table, one, 0.0, 4.0)
    assert not any_waits(table)
    await_ends(table, "weights", 4.5)
    assert any_waits(table)
    no_longer_awaited(table, "weights")
    assert not any_waits(table)
    table.move(other, Phase.PAUSED, 5.0)
    assert any_waits(table)
    table.move(other, Phase.LOADING, 6.0)
    assert any_waits(table), "it comes back, but it does not run yet"


def test_a_rest_ends_by_itself_and_there_is_no_other(table) -> None:
    stream = running(table, rate=20.0)
    set_rate(table, stream, 0.0, 4.0)
    set_rate(table, stream, 0.0, 9.0)
    end_rests(table, 64.0)
    assert rests(table, stream), "not for longer than that"
    end_rests(table, 64.5)
    assert not rests(table, stream)
    assert table.readers.rate[table.slot(stream)] == 20.0
    assert ended(table) == {"limit": 1}
    version = table.phases.version
    assert not set_rate(table, stream, 0.0, 70.0)
    assert not rests(table, stream)
    assert table.phases.version == version, "nothing is decided anew"
    assert set_rate(table, stream, 5.0, 71.0), "another rate is noted"


@pytest.mark.parametrize("rate", [0.1, 1000.0])
def test_rests_that_are_renewed_count_together(table, rate) -> None:
    stream = running(table)
    now, rested = 4.0, 0.0
    while set_rate(table, stream, 0.0, now):
        now, rested = now + 2.0, rested + 2.0
        end_rests(table, now)
        set_rate(table, stream, rate, now)
        assert rested <= LONGEST
    assert rested == LONGEST


def test_a_moment_counts_for_a_second(table) -> None:
    """Else a stream that rests again before it is back would get nowhere, for as long as it lasts.

    One that rests in every other moment would be paused and resumed without an end, too.
    """
    stream = running(table)
    now, times = 4.0, 0
    while set_rate(table, stream, 0.0, now):
        now, times = now + 0.01, times + 1
        set_rate(table, stream, 10.0, now)
    assert times == LONGEST / LEAST_REST


def test_a_slot_that_is_used_again_has_not_rested(table) -> None:
    stream = running(table)
    set_rate(table, stream, 0.0, 4.0)
    end_rests(table, 90.0)
    table.forget(stream, cut_off=True)
    other = running(table)
    assert table.slot(other) == 3 or table.rested[table.slot(other)] == 0.0
    assert set_rate(table, other, 0.0, 91.0)


def test_none_rests_while_all_are_waited_for(table) -> None:
    resting, reading = running(table), running(table)
    for stream in (resting, reading):
        stream.produce(30)
    table.collect(4.0)
    set_rate(table, resting, 0.0, 4.0)
    assert due(table) == [math.inf, 7.0]
    version = table.phases.version
    await_ends(table, "weights", 5.0)
    assert table.phases.version > version, "an idle decision does not stand"
    assert not rests(table, resting)
    assert due(table) == [5.0, 5.0], "no reader is ahead of it, and the wait grows"
    assert ended(table) == {"awaited": 1}
    assert table.readers.resting[table.slot(resting)], "it reads nothing, all the same: no stall"
    no_longer_awaited(table, "weights")
    assert rests(table, resting)
    assert due(table) == [math.inf, 7.0]


def test_a_reader_who_has_run_dry_before_keeps_its_claim(table) -> None:
    stream = running(table)
    stream.produce(10)
    table.collect(4.0)
    await_ends(table, "weights", 9.0)
    assert due(table) == [5.0]


def test_a_rest_that_begins_meanwhile_is_none(table) -> None:
    stream = running(table)
    await_ends(table, "end", 3.0)
    assert set_rate(table, stream, 0.0, 4.0), "it is noted that the reader is away"
    newcomer = running(table, arrival=5.0, now=5.0)
    set_rate(table, newcomer, 0.0, 6.0)
    waiting = Request()
    track(table, waiting, arrival=7.0, now=7.0)
    assert not table.streams(()).resting.any()
    assert due(table) == [3.0, 5.0, 7.0], "no newcomer has waited before it came"


def test_several_wait_and_the_last_one_counts(table) -> None:
    stream = running(table)
    set_rate(table, stream, 0.0, 4.0)
    await_ends(table, "one", 5.0)
    await_ends(table, "other", 6.0)
    await_ends(table, "one", 7.0)
    no_longer_awaited(table, "one")
    assert (rests(table, stream), due(table)) == (False, [6.0])
    no_longer_awaited(table, "unknown")
    assert not rests(table, stream)
    no_longer_awaited(table, "other")
    assert rests(table, stream)


def test_an_adapter_s_end_is_none_of_the_others(table) -> None:
    using, other, plain = running(table), running(table), running(table)
    use_adapter(table, using, "mine")
    use_adapter(table, other, "theirs")
    for stream in (using, other, plain):
        set_rate(table, stream, 0.0, 4.0)
    await_ends(table, "unload", 5.0, adapter="mine")
    assert [rests(table, each) for each in (using, other, plain)] == [False, True, True]
    late = running(table, arrival=6.0, now=6.0)
    use_adapter(table, late, "mine")
    set_rate(table, late, 0.0, 7.0)
    assert not rests(table, late), "it was on its way when the wait began"
    table.forget(using, cut_off=False)
    fresh = running(table)
    assert table.slot(fresh) in range(8)
    set_rate(table, fresh, 0.0, 8.0)
    assert rests(table, fresh), "though it has the slot of one that used it"


def test_a_flush_gives_up(table) -> None:
    stream = running(table)
    set_rate(table, stream, 0.0, 4.0)
    await_ends(table, "flush", 5.0, until=7.0)
    await_ends(table, "weights", 5.0)
    end_rests(table, 6.9)
    assert not rests(table, stream)
    end_rests(table, 7.0)
    assert not rests(table, stream), "the weights still wait"
    no_longer_awaited(table, "weights")
    assert rests(table, stream)


def test_a_flush_that_is_done_holds_up_no_later_rest(table) -> None:
    stream = running(table)
    await_ends(table, "flush", 5.0, until=700.0)
    await_ends(table, "end", 5.0)
    table.forget(stream, cut_off=False)
    end_rests(table, 6.0)
    no_longer_awaited(table, "end")
    later = running(table)
    set_rate(table, later, 0.0, 7.0)
    assert rests(table, later)
