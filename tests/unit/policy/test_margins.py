"""What admission keeps of the engine's time: less far ahead, and some against the worst lengths."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from admitting import AS_MODELLED

from tokenflow_sgl.contract.lengths import GRID, LengthCurves, Lengths
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import FAR_MORE, admissible
from tokenflow_sgl.policy.demand import WORST_MORE

# What two streams that hold 1,600 tokens at last ask for at their worst horizon, 110 s, which is
# five ninths of the way from 60 s to 150 s.
NEEDED = 140 / 110
CERTAIN = LengthCurves(np.ones((1, len(GRID))))
SHORT = LengthCurves((GRID < 300)[None, :].astype(np.float64))
"""No answer is longer than 300 tokens."""


@pytest.fixture
def joins(make_state, member, newcomer):
    def ask(eta, *, total=1000, lengths=None):
        costs = StepCosts(decode=(total * 1e-4, 0.0, 0.0))
        state = make_state([member(), newcomer()], total=total, free=0, host=100_000, costs=costs)
        streams = state.streams
        if lengths is not None:
            streams = dataclasses.replace(streams, lengths=lengths)
        state = dataclasses.replace(state, streams=streams, kv_rate=AS_MODELLED)
        return admissible(state, WorkingSetConfig(eta=eta, hysteresis=0.0)).join.tolist() == [1]

    return ask


@pytest.mark.parametrize(("total", "share"), [(1000, 1.0), (500, 0.8 / 1.5), (250, 0.0)])
def test_far_ahead_more_is_promised_where_few_streams_rest(joins, total, share) -> None:
    least = NEEDED / (1.0 + FAR_MORE * share * 5 / 9)
    assert not joins(least - 0.002, total=total)
    assert joins(least + 0.002, total=total)


def test_the_worst_lengths_may_ask_for_more_of_the_time(joins) -> None:
    least = NEEDED / (1.0 + FAR_MORE * 5 / 9)
    uncertain = Lengths(SHORT, SHORT, CERTAIN)
    assert joins(least / WORST_MORE + 0.002, lengths=uncertain)
    assert not joins(least / WORST_MORE - 0.002, lengths=uncertain)
    assert joins(least / WORST_MORE - 0.002, lengths=Lengths(SHORT, SHORT)), "all is known"


def test_all_kinds_have_the_worst_lengths_if_there_are_any() -> None:
    several = Lengths(SHORT, SHORT, CERTAIN).repeated(3)
    assert several.worst is not None
    assert several.worst.survival.shape == (3, len(GRID))
    assert Lengths(SHORT, SHORT).repeated(3).worst is None
