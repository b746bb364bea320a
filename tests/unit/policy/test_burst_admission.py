"""A burst that has ended is admitted whole, if that serves its readers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from admitting import AS_MODELLED, COSTS

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import CONSIDERED, admissible


def test_but_a_burst_is_looked_at_as_a_whole(make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, prompt=1, expected=1.0)] * (CONSIDERED + 10)
    state = make_state(rows, costs=COSTS)
    ended = float(state.streams.arrival.max()) + 5.0
    joined = admissible(dataclasses.replace(state, now=ended), WorkingSetConfig())
    assert len(joined.join) == CONSIDERED + 10


@pytest.mark.parametrize(
    ("since_arrival", "burst_eta", "expected"),
    [
        (3.0, 1.28, [1]),  # no stream came for three seconds: 1.2727 of the time may be promised
        (2.9, 1.28, []),
        (3.0, 1.27, []),
        (11.0, 1.28, []),  # the one that waits has waited long already
    ],
)
def test_a_burst_that_has_ended_is_cleared(
    make_state, member, newcomer, since_arrival, burst_eta, expected
) -> None:
    rows = [member(), newcomer()]
    state = make_state(rows, total=1000, free=0, host=100_000, costs=COSTS, kv_rate=AS_MODELLED)
    ended = float(state.streams.arrival.max()) + since_arrival
    state = dataclasses.replace(state, now=ended, streams=_due_now(state, ended))
    config = WorkingSetConfig(burst_eta=burst_eta, calm=3.0)
    assert admissible(state, config).join.tolist() == expected


def test_a_burst_is_not_cleared_at_the_cost_of_requests_without_a_reader(
    make_state, member, newcomer
) -> None:
    rows = [member(streaming=False), newcomer()]
    state = make_state(rows, total=1000, free=0, host=100_000, costs=COSTS, kv_rate=AS_MODELLED)
    ended = float(state.streams.arrival.max()) + 3.0
    state = dataclasses.replace(state, now=ended, streams=_due_now(state, ended))
    assert admissible(state, WorkingSetConfig(burst_eta=1.28, calm=3.0)).join.tolist() == []


def test_a_burst_is_cleared_whole_or_not_at_all(make_state, member, newcomer) -> None:
    # Three together need 1.909 of the time at the worst horizon: none is squeezed in.
    rows = [member(), newcomer(), newcomer()]
    state = make_state(rows, total=1000, free=0, host=100_000, costs=COSTS, kv_rate=AS_MODELLED)
    ended = float(state.streams.arrival.max()) + 9.0
    state = dataclasses.replace(state, now=ended, streams=_due_now(state, ended))
    assert admissible(state, WorkingSetConfig(burst_eta=1.9)).join.tolist() == []
    assert admissible(state, WorkingSetConfig(burst_eta=1.91)).join.tolist() == [1, 2]


def test_a_burst_that_memory_cannot_hold_is_not_cleared_in_part(
    make_state, member, newcomer
) -> None:
    # Each of the three ends up with 800 tokens on average: 1900 hold the member and one more.
    rows = [member(), newcomer(), newcomer()]
    state = make_state(rows, total=1000, free=0, host=1600, costs=COSTS, kv_rate=AS_MODELLED)
    ended = float(state.streams.arrival.max()) + 5.0
    state = dataclasses.replace(state, now=ended, streams=_due_now(state, ended))
    assert admissible(state, WorkingSetConfig(burst_eta=9.0)).join.tolist() == []
    alone = make_state(rows[:2], total=1000, free=0, host=1600, costs=COSTS, kv_rate=AS_MODELLED)
    alone = dataclasses.replace(alone, now=ended, streams=_due_now(alone, ended))
    assert admissible(alone, WorkingSetConfig(burst_eta=9.0)).join.tolist() == [1]


def _due_now(state, now):
    """The same streams, whose readers run dry at `now`."""
    return dataclasses.replace(state.streams, next_due=np.full(len(state.streams), now))
