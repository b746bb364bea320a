"""Streams that begin alike take turns together: who needs its beginning back gets their place."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from exchanging import CONFIG, joined

from tokenflow_sgl.contract import Beginnings, Phase
from tokenflow_sgl.contract.reserve import DECODE_TARGET_STEPS
from tokenflow_sgl.policy.exchange import YIELDS, exchange

COMMON = 1000
"""Tokens that the streams of a group share; each has 200 more of its own."""


@pytest.fixture
def plan(make_state, make_stream):
    """(slots to run, slots to preempt) of streams told as (group, phase, slack)."""

    def ask(*told, free=0, shares=True, newcomers=()):
        runs = [group for group, phase, _ in told if phase is Phase.RUNNING]
        rows = [
            make_stream(
                phase,
                prompt=COMMON + 100,
                slack=slack,
                shared=COMMON * (runs.count(group) > (phase is Phase.RUNNING)),
            )
            for group, phase, slack in told
        ]
        groups = [group for group, _, _ in told]
        for group in newcomers:
            rows.append(make_stream(Phase.WAITING, prompt=COMMON + 100, admitted=True))
            rows[-1]["shared"] = COMMON * (group in runs)
            groups.append(group)
        reserve = DECODE_TARGET_STEPS * len(runs)
        state = make_state(rows, total=20_000, free=free + reserve)
        if shares:
            named = sorted(set(groups))
            alike = Beginnings(
                index=np.arange(len(rows)),
                lengths=np.ones(len(rows), dtype=np.int64),
                places=np.array([named.index(group) for group in groups], dtype=np.int64),
                tokens=np.full(len(rows), COMMON, dtype=np.int64),
            )
            streams = dataclasses.replace(state.streams, beginnings=alike)
            state = dataclasses.replace(state, streams=streams)
        found = exchange(state, CONFIG, joined())
        return [10 + i for i in found.run], [each.slot for each in found.preempt]

    return ask


# Of an answer of 400 tokens at 10/s who has 2 s unread is not saturated: alone it gives no way.
GROUP = [("a", Phase.RUNNING, 2.0)] * 5
STALLS = ("b", Phase.PAUSED, -1.0)


def test_a_group_leaves_for_a_reader_who_needs_another_beginning(plan) -> None:
    assert plan(*GROUP, STALLS) == ([15], [10, 11, 12, 13, 14])
    assert plan(*GROUP, STALLS, shares=False) == ([], []), "one by one none is far enough ahead"


def test_no_group_leaves_of_which_one_reader_is_about_to_stall(plan) -> None:
    assert plan(*GROUP, ("a", Phase.RUNNING, CONFIG.min_run), STALLS) == ([], [])


def test_the_smallest_group_that_frees_enough_leaves(plan) -> None:
    others = [("c", Phase.RUNNING, 2.0)] * 2
    assert plan(*GROUP, *others, STALLS) == ([17], [15, 16])


def test_one_by_one_where_that_pauses_fewer(plan) -> None:
    ahead = [("c", Phase.RUNNING, 30.0)] * 3
    assert plan(*GROUP, *ahead, STALLS, free=900)[1] == [17, 16], "they end the sooner"
    assert len(plan(*GROUP, *ahead, STALLS)[1]) == 3, "then all of them, with what they share"


def test_what_runs_beside_it_brings_the_beginning(plan) -> None:
    two = [STALLS, ("b", Phase.PAUSED, -0.5)]
    room = COMMON + 2 * (200 + DECODE_TARGET_STEPS)
    assert plan(*two, ("a", Phase.RUNNING, 2.0), free=room)[0] == [10, 11]
    assert plan(*two, ("a", Phase.RUNNING, 2.0), free=room, shares=False)[0] == [10]


def test_others_take_no_memory_while_a_reader_stalls_who_lacks_it(plan) -> None:
    starved = [("a", Phase.RUNNING, 0.0), STALLS]
    patient, hurried = ("a", Phase.PAUSED, YIELDS + 0.1), ("a", Phase.PAUSED, YIELDS)
    assert plan(*starved, patient, free=500) == ([], [])
    assert plan(*starved, hurried, free=500) == ([12], [])
    assert plan(*starved[:1], patient, free=500) == ([11], []), "if none stalls"


def test_newcomers_come_beside_it(plan) -> None:
    starved = [("a", Phase.RUNNING, 0.0), STALLS]
    assert plan(*starved, newcomers="a", free=500) == ([12], [])
