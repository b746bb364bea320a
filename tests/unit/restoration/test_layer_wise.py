"""The number of computed layers, and the length from which on tokens are split instead."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.restoration import (
    Channel,
    RestoreTerms,
    best_layers,
    best_split,
    crossover_length,
    in_chunks,
    layers_are_sooner,
    more_layers,
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
    terms = RestoreTerms(COMPUTE, page=64, layers=32, overhead=0.001)
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
    terms = RestoreTerms(COMPUTE, page=64, layers=32)
    assert crossover_length([64], Channel("storage", rate=20_000.0), terms) is None


def test_a_model_has_layers() -> None:
    with pytest.raises(ValueError, match="layers is 0; allowed is 1 or more"):
        best_layers(0, 1, layers=0, compute=COMPUTE, fetch=lambda n: 1.0)
    assert best_layers(0, 0, layers=1, compute=COMPUTE, fetch=lambda n: 1.0).seconds == 0.0


def link(rate: float, late: float = 0.0):
    """Seconds until so many tokens have come over a link, which says nothing for a while."""
    return lambda tokens: late + tokens / rate if tokens else 0.0


def sooner(gap: int, rate: float, **more: float) -> bool:
    known = {"compute": COMPUTE, "fetch": link(rate), "page": 64, **more}
    return layers_are_sooner(0, gap, 64, layers=32, **known)


def test_layers_are_chosen_where_a_second_step_would_cost_more_than_tokens_save() -> None:
    assert sooner(512, 20_000.0)
    assert not sooner(32_768, 20_000.0), "the cheap part of the attention is in the head"
    assert not sooner(512, 1e7), "loading all of it is sooner"
    assert not sooner(512, 100.0), "computing all of it is"
    assert not sooner(512, 20_000.0, gain=1.0)


@given(st.integers(64, 8192), st.floats(1e3, 1e6), st.floats(0.0, 0.05))
def test_what_is_chosen_is_not_slower_than_any_other_way(gap, rate, lead) -> None:
    fetch, end, suffix = link(rate), gap, 64
    if not layers_are_sooner(
        0, gap, suffix, layers=32, compute=COMPUTE, fetch=fetch, page=64, lead=lead
    ):
        return
    split = best_layers(0, gap, layers=32, compute=COMPUTE, fetch=fetch, suffix=suffix, lead=lead)
    tokens = best_split(0, gap, compute=COMPUTE, fetch=fetch, page=64, lead=lead)
    others = (
        lead + COMPUTE(0, gap + suffix),
        fetch(gap) + COMPUTE(end, suffix),
        tokens.seconds + COMPUTE(end, suffix),
    )
    assert split.seconds < min(others)


def asked(computed: int, landed: int, rate: float, **more: float) -> int:
    known = {"compute": COMPUTE, "fetch": link(rate), "page": 64, **more}
    return more_layers(0, 1024, 64, layers=32, computed=computed, landed=landed, **known)


def test_the_meeting_point_moves_with_the_link() -> None:
    slow, fast = asked(0, 0, 10_000.0), asked(0, 0, 40_000.0)
    assert 0 < fast < slow < 32
    assert asked(0, 0, 1.0) == 32, "a dead link: all of them"
    assert asked(fast, 4, 1.0) == 32 - fast - 4, "also when some have come"


def test_nothing_is_computed_for_what_arrives_soon_enough() -> None:
    assert asked(16, 15, 1e6, wait=0.004) == 0
    assert asked(16, 16, 1.0) == 0, "nothing is missing"
    assert asked(10, 10, 20_000.0, lead=math.inf) == 0, "the device is busy for longer"


@given(st.integers(1, 31), st.floats(5e3, 1e5))
def test_computing_in_parts_comes_to_the_same(first, rate) -> None:
    """Asked again after each part, with what has landed by then."""
    gap, per_layer = 1024, COMPUTE(0, 1088) / 32
    whole = asked(0, 0, rate)
    computed, now = 0, 0.0
    while True:
        landed = min(int(now * rate * 32 / gap), 32)
        more = asked(computed, landed, rate)
        if not more:
            break
        part = min(more, first)
        computed, now = computed + part, now + part * per_layer
    assert abs(computed - whole) <= 1
