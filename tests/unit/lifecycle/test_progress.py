"""What the readers of live streams get, pass by pass, and what becomes known of them."""

from __future__ import annotations

import numpy as np
import pytest
from tracked import Request, running, track

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.reader_updates import set_passed_on
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths


@pytest.fixture
def table() -> StreamTable[Request]:
    return StreamTable(LimitLengths(), capacity=4)


def test_what_is_taken_back_is_reported_once(table) -> None:
    stream = running(table)
    reported = 0
    for made, passed_on in ((30, 0), (10, None), (5, 38), (5, None)):
        stream.produce(made)
        reported += int(table.collect(3.0).new.sum())
        set_passed_on(table, stream, passed_on, 3.0)
    reported += int(table.collect(4.0).new.sum())
    assert reported == 50 == table.readers.delivered[table.slot(stream)]


def test_collect_hands_new_tokens_to_the_readers(table) -> None:
    first, second = running(table), running(table)
    waiting = Request()
    track(table, waiting)
    first.produce(3)
    progress = table.collect(4.0)
    assert progress.slots.tolist() == [table.slot(first), table.slot(second)]
    assert progress.counts.tolist() == [3, 0]
    seen = table.streams(())
    assert seen.generated.tolist() == [3, 0, 0]
    assert seen.next_due.tolist() == pytest.approx([4.3, 1.0, 1.0])

    # Late by 0.2 s: playback goes on from 4.5.
    first.produce(1)
    second.produce(2)
    progress = table.collect(4.5)
    assert progress.counts.tolist() == [1, 2]
    assert progress.delivery.stalled.tolist() == pytest.approx([0.2, 0.0])
    assert table.streams(()).next_due.tolist() == pytest.approx([4.6, 4.7, 1.0])
    assert table.collect(4.5).counts.tolist() == [0, 0]


def test_a_reader_has_what_was_sent_and_the_memory_what_was_made(table) -> None:
    request = running(table)
    request.produce(1)
    table.collect(4.0)
    request.produce(30, held_back=30)
    progress = table.collect(5.0)
    assert (progress.counts.tolist(), progress.produced) == ([0], 30)
    seen = table.streams(())
    assert seen.generated.tolist() == [31]
    assert seen.next_due.tolist() == pytest.approx([4.1]), "the reader has one token of 0.1 s"
    request.produce(10)
    progress = table.collect(6.0)
    assert (progress.counts.tolist(), progress.produced) == ([40], 10)
    assert progress.delivery.stalled.tolist() == pytest.approx([1.9])
    assert table.streams(()).next_due.tolist() == pytest.approx([10.0])


def test_without_a_reader_what_is_made_counts_as_delivered(table) -> None:
    request = running(table, streaming=False)
    request.produce(5, held_back=5)
    assert table.collect(4.0).counts.tolist() == [5]


def test_a_stream_that_leaves_the_batch_is_looked_at_once_more(table) -> None:
    drains, rests, goes, returns = (running(table) for _ in range(4))
    table.move(drains, Phase.DRAINING, 3.0)
    for request in (rests, goes, returns):
        table.move(request, Phase.PAUSED, 3.0)
    for request in (drains, rests, goes, returns):
        request.produce(1)
    table.forget(goes, cut_off=True)
    table.move(returns, Phase.RUNNING, 3.0)
    slots = [table.slot(request) for request in (drains, returns, rests)]
    assert table.collect(4.0).slots.tolist() == slots
    assert table.streams(()).generated.tolist() == [1, 1, 1]
    assert table.collect(5.0).slots.tolist() == slots[:2]


def test_collecting_nothing_is_fine(table) -> None:
    assert table.collect(1.0).slots.tolist() == []
    track(table, Request())
    assert table.collect(1.0).counts.tolist() == []


def test_a_stream_can_be_dated_until_it_has_started(table) -> None:
    request = Request()
    slot = track(table, request)
    table.redate(request, 7.0)
    assert (table.readers.arrival[slot], table.phases.since[slot]) == (7.0, 7.0)
    assert table.readers.slack(np.array([slot]), 9.0).tolist() == [-2.0]
    table.move(request, Phase.RUNNING, 8.0)
    request.produce(1)
    table.collect(9.0)
    table.readers.redate(slot, 3.0)
    assert table.readers.arrival[slot] == 7.0


def test_an_answer_that_is_made_anew_takes_nothing_from_what_others_made(table) -> None:
    retracted, other = running(table), running(table)
    retracted.produce(30)
    assert table.collect(3.0).produced == 30
    retracted.output_ids.clear()
    retracted.held_back = -30  # SGLang goes on sending where it was
    table.move(retracted, Phase.WAITING, 3.5)
    other.produce(2)
    assert table.collect(4.0).produced == 2
    table.move(retracted, Phase.RUNNING, 5.0)
    retracted.produce(31, held_back=0)
    got = table.collect(6.0)
    assert (got.produced, int(got.new.sum())) == (31, 1), "made again, and sent once"
