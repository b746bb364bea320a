"""The number of computed layers, and the length from which on tokens are split instead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.restoration import (
    Channel,
    Terms,
    best_layers,
    best_split,
    crossover_length,
    in_chunks,
)

STEP = 0.006
"""Seconds of the shortest step: the weights are read."""


def step(tokens: int, prefix: int) -> float:
    return max(STEP, 0.001 + 40e-6 * tokens + 1e-9 * tokens * (prefix + tokens / 2))


COMPUTE = in_chunks(step, 4096)


@given(st.integers(1, 64), st.integers(1, 20_000), st.floats(1e-6, 1e-3), st.floats(0.0, 0.05))
def test_it_is_never_worse_than_one_source(layers, gap, token, latency) -> None:
    def fetch(tokens: int) -> float:
        return latency + token * tokens if tokens else 0.0

    split = best_layers(0, gap, layers=layers, compute=COMPUTE, fetch=fetch, overhead=0.001)
    assert 0 <= split.layers <= layers
    assert split.seconds <= min(COMPUTE(0, gap), fetch(gap)) * (1 + 1e-12)
    # Harmonic mean of both, and a layer more at most (CacheFlow, equation 1).
    tc, tio = COMPUTE(0, gap), fetch(gap)
    assert split.seconds <= tc * tio / (tc + tio) + (tc + tio) / layers + latency + 0.001


def test_a_short_prefix_is_split_by_layers_and_a_long_one_by_tokens() -> None:
    channel = Channel("storage", rate=20_000.0)
    terms = Terms(COMPUTE, page=64, layers=32, overhead=0.001)
    crossover = crossover_length(range(64, 8192, 64), channel, terms)
    assert crossover is not None

    def seconds(gap: int) -> tuple[float, float]:
        tokens = best_split(0, gap, compute=COMPUTE, fetch=channel.seconds, page=64)
        layers = best_layers(
            0, gap, layers=32, compute=COMPUTE, fetch=channel.seconds, overhead=0.001
        )
        return tokens.seconds, layers.seconds

    tokens, layers = seconds(crossover - 64)
    assert tokens > layers
    tokens, layers = seconds(crossover)
    assert tokens <= layers
    assert seconds(128)[1] < 0.75 * seconds(128)[0]
    assert seconds(32768)[0] < 0.95 * seconds(32768)[1]


def test_without_a_crossover_there_is_none() -> None:
    terms = Terms(COMPUTE, page=64, layers=32)
    assert crossover_length([64], Channel("storage", rate=20_000.0), terms) is None


def test_a_model_has_layers() -> None:
    with pytest.raises(ValueError, match="layers is 0; allowed is 1 or more"):
        best_layers(0, 1, layers=0, compute=COMPUTE, fetch=lambda n: 1.0)
    assert best_layers(0, 0, layers=1, compute=COMPUTE, fetch=lambda n: 1.0).seconds == 0.0
