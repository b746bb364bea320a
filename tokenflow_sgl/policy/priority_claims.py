"""What a request's priority adds to its claim: a factor on the weight of its class.

A step of priority makes a second of waiting count so many times as much (`urgency`). So a stream of
higher priority goes first among those whose readers wait equally long, takes memory from streams of
lower priority sooner, and none of these starves: their product of weight and wait grows, too.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from tokenflow_sgl.contract import State

FARTHEST = 10
"""Priorities further above or below 0 than this count like it."""


def with_claims(state: State, base: float) -> State:
    """The state in which each stream's weight has the factor of its priority.

    Args:
        state: As the body sees it.
        base: Of each step of priority; 1: priorities make no difference.
    """
    streams = state.streams
    if streams.priority is None or base == 1.0:
        return state
    weight = np.power(base, np.clip(streams.priority, -FARTHEST, FARTHEST))
    if streams.weight is not None:
        weight = weight * streams.weight
    weighted = dataclasses.replace(streams, weight=weight, priority=None)
    return dataclasses.replace(state, streams=weighted)
