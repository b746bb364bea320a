"""What of a stream's output is reasoning, which its reader does not see."""

from __future__ import annotations

import pytest
from tracked import Request, running

from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy.predictors import LimitLengths

END = 99
"""Ends the reasoning of the streams of these tests."""


def reasoning(request: Request, since: int) -> int:
    ids = request.output_ids
    start = max(since - 1, 0)
    return ids.index(END, start) + 1 if END in ids[start:] else len(ids)


@pytest.fixture
def thinkers() -> StreamTable[Request]:
    return StreamTable(LimitLengths(), capacity=4, reasoning=reasoning)


def test_a_stream_that_thinks_has_no_reader_until_its_first_visible_token(thinkers) -> None:
    request = running(thinkers, thinking=True)
    slot = thinkers.slot(request)
    seen = thinkers.streams(())
    assert (seen.thinking.tolist(), seen.visible.tolist()) == ([True], [0])
    request.output_ids += [1, 2, 3]
    progress = thinkers.collect(3.0)
    assert (progress.counts.tolist(), progress.reasoned.tolist()) == ([0], [3])
    assert (progress.begun.tolist(), progress.produced) == ([True], 3)
    seen = thinkers.streams(())
    assert (seen.generated.tolist(), seen.visible.tolist()) == ([3], [0])
    assert seen.next_due.tolist() == [1.0], "due since its arrival"
    assert seen.thinks.tolist() == seen.textless.tolist() == [True]
    # The end of the thinking is no text either.
    request.output_ids += [4, END]
    assert thinkers.collect(4.0).counts.tolist() == [0]
    assert thinkers.streams(()).thinking.tolist() == [True]
    request.output_ids += [6, 7]
    progress = thinkers.collect(5.0)
    assert (progress.counts.tolist(), progress.reasoned.tolist()) == ([2], [0])
    assert progress.begun.tolist() == [False]
    seen = thinkers.streams(())
    assert (seen.thinking.tolist(), seen.visible.tolist()) == ([False], [2])
    assert seen.next_due.tolist() == [5.2]
    assert thinkers.readers.stall_seconds[slot] == 0.0, "thinking is no stall"
    # What looks like an end later on is text.
    request.output_ids += [END]
    assert thinkers.collect(5.1).counts.tolist() == [1]


def test_what_is_held_back_of_the_text_is_not_read(thinkers) -> None:
    request = running(thinkers, thinking=True)
    request.output_ids, request.held_back = [1, END, 5, 6], 1
    assert thinkers.collect(3.0).counts.tolist() == [1]
    assert thinkers.streams(()).visible.tolist() == [2]
    request.held_back = 0
    assert thinkers.collect(3.1).counts.tolist() == [1]


@pytest.mark.parametrize(
    "given", [{"thinking": False}, {"hidden": False}, {"streaming": False}], ids=str
)
def test_reasoning_counts_where_it_is_read_or_none_reads(thinkers, given) -> None:
    request = running(thinkers, **{"thinking": True, **given})
    assert thinkers.streams(()).thinks.tolist() == [False]
    request.output_ids += [1, 2, 3]
    progress = thinkers.collect(3.0)
    assert (progress.counts.tolist(), progress.reasoned.tolist()) == ([3], [0])
    assert thinkers.streams(()).seen.tolist() == [3]


def test_a_slot_forgets_what_was_thought_in_it(thinkers) -> None:
    old = running(thinkers, thinking=True)
    old.output_ids += [1, 2]
    thinkers.collect(3.0)
    thinkers.forget(old, cut_off=True)
    new = running(thinkers)
    new.output_ids += [1]
    progress = thinkers.collect(4.0)
    assert (progress.counts.tolist(), progress.begun.tolist()) == ([1], [True])


def test_what_only_looked_like_reasoning_is_text_and_takes_nothing_back() -> None:
    said = iter([1, 0])
    table: StreamTable[Request] = StreamTable(
        LimitLengths(), capacity=4, reasoning=lambda request, since: next(said)
    )
    request = running(table, thinking=True)
    request.output_ids += [1]
    assert table.collect(3.0).reasoned.tolist() == [1]
    request.output_ids += [2]
    progress = table.collect(4.0)
    assert (progress.counts.tolist(), progress.reasoned.tolist()) == ([2], [0])
