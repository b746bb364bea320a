"""A trace several times in a row."""

from __future__ import annotations

import pytest

from tokenflow_sgl.lab.traces import Accounting, PriorityUpdate, Trace, TraceError, TraceRequest
from tokenflow_sgl.lab.traces.repeat import period_s, repeat
from tokenflow_sgl.lab.traces.request import PrefixBlock


def trace(*requests: TraceRequest, updates: tuple[PriorityUpdate, ...] = ()) -> Trace:
    rows = len(requests) + 1
    return Trace("t", requests, Accounting(rows, len(requests), {"why": 1}), ("Old.",), updates)


PLAIN = trace(*(TraceRequest(float(second), 10, 5) for second in (0, 2, 4)))


def test_it_goes_on_at_its_own_rate() -> None:
    assert period_s(PLAIN) == 6.0
    twice = repeat(PLAIN, 2)
    assert [each.arrival_s for each in twice.requests] == [0, 2, 4, 6, 8, 10]
    assert twice.accounting == Accounting(8, 6, {"why": 2})
    assert twice.notes == ("Old.", "2 times in a row, every 6 s.")
    assert repeat(PLAIN, 1) is PLAIN


def test_sessions_and_prefixes_are_each_repetition_s_own() -> None:
    shared = (PrefixBlock(3, 4), PrefixBlock(7, 4))
    late = TraceRequest(9.0, 20, 5, session="a", turn=1, think_s=1.0)
    chat = trace(
        TraceRequest(0.0, 10, 5, session="a", prefix=shared),
        TraceRequest(4.0, 10, 5, prefix=shared),
        late,
    )
    # Later turns do not count: the period is 8 s.
    twice = repeat(chat, 2)
    assert [each.arrival_s for each in twice.requests] == [0.0, 4.0, 8.0, 9.0, 12.0, 17.0]
    assert [each.session for each in twice.requests] == ["a/0", None, "a/1", "a/0", None, "a/1"]
    ids = [{block.id for block in each.prefix} for each in twice.requests]
    assert ids[0] == ids[1] == {3, 7}
    assert ids[2] == ids[4] and not ids[0] & ids[2]


def test_changes_of_priority_stay_with_their_requests() -> None:
    changed = trace(*PLAIN.requests, updates=(PriorityUpdate(3.0, 1, 5),))
    twice = repeat(changed, 2)
    assert twice.priority_updates == (PriorityUpdate(3.0, 1, 5), PriorityUpdate(9.0, 4, 5))


def test_what_cannot_be_repeated_is_said() -> None:
    burst = trace(TraceRequest(1.0, 10, 5), TraceRequest(1.0, 10, 5))
    assert period_s(burst) == period_s(trace(TraceRequest(1.0, 10, 5))) == 0.0
    with pytest.raises(TraceError, match="t arrives all at once, so it cannot be repeated in time"):
        repeat(burst, 2)
    with pytest.raises(TraceError, match="times is 0; allowed is a whole number of at least 1"):
        repeat(PLAIN, 0)
