"""A step of priority is a factor on the weight, and policies decide by that alone."""

from __future__ import annotations

import dataclasses
import sys

import numpy as np
import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.lifecycle.columns import shown_priorities
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.priority_claims import FARTHEST, with_claims


@pytest.fixture
def state(make_state, make_stream):
    def make(*priorities: float, weight: list[float] | None = None):
        rows = [make_stream(Phase.RUNNING) for _ in priorities]
        made = make_state(rows)
        streams = dataclasses.replace(
            made.streams,
            priority=np.array(priorities),
            weight=None if weight is None else np.array(weight),
        )
        return dataclasses.replace(made, streams=streams)

    return make


def test_each_step_is_a_factor(state) -> None:
    assert with_claims(state(0, 1, 3, -1), 2.0).streams.weight.tolist() == [1.0, 2.0, 8.0, 0.5]
    weighted = with_claims(state(0, 1, weight=[3.0, 0.5]), 2.0)
    assert weighted.streams.weight.tolist() == [3.0, 1.0]


def test_priorities_count_within_bounds(state) -> None:
    far = with_claims(state(float(1 << 62), 0, -float(sys.maxsize)), 2.0).streams.weight
    assert far.tolist() == [2.0**FARTHEST, 1.0, 2.0**-FARTHEST]


def test_without_priorities_or_a_factor_the_state_is_as_it_was(make_state, make_stream, state):
    plain = make_state([make_stream(Phase.RUNNING)])
    assert with_claims(plain, 2.0) is plain
    given = state(1, 2)
    assert with_claims(given, 1.0) is given


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ([0, 1, -2], [0, 1, -2]),
        ([1 << 40, 0, -(1 << 62)], [1 << 40, 0, -(1 << 62)]),
        ([7, 7], [0, 0]),
        ([], []),
    ],
)
def test_priorities_that_are_alike_are_none(given, shown) -> None:
    assert shown_priorities(np.array(given, dtype=np.int64)).tolist() == shown


def test_the_policy_decides_as_with_these_weights(state) -> None:
    policy = WorkingSetPolicy(WorkingSetConfig())
    by_priority = policy.decide(state(0, 2, 1))
    by_weight = policy.decide(
        dataclasses.replace(
            state(0, 2, 1),
            streams=dataclasses.replace(
                state(0, 2, 1).streams, priority=None, weight=np.array([1.0, 4.0, 2.0])
            ),
        )
    )
    assert dataclasses.replace(by_priority, memo=None) == dataclasses.replace(by_weight, memo=None)
