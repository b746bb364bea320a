"""Which way is chosen, from where, and why."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.restoration import Channel, RestoreTerms, Stored, WayReason, in_chunks, plan
from tokenflow_sgl.restoration.prefix_way import PrefixWay

COMPUTE = in_chunks(
    lambda n, prefix: max(0.006, 0.001 + 20e-6 * n + 0.6e-9 * n * (prefix + n / 2)), 4096
)
HOST = Channel("host", rate=400_000.0, latency=10e-6, beside=True)
STORAGE = Channel("storage", rate=25_000.0, latency=0.001)
TERMS = RestoreTerms(COMPUTE, page=64, layers=32, overhead=0.001)


def test_a_long_prefix_in_storage_takes_both() -> None:
    found = plan(Stored(32768, suffix=128), [STORAGE], TERMS)
    assert (found.way, found.channel, found.reason) == (PrefixWay.TOKENS, "storage", WayReason.BOTH)
    assert found.split % 64 == 0
    load = STORAGE.seconds(32768) + COMPUTE(32768, 128)
    compute = COMPUTE(0, 32768 + 128)
    assert found.saved == pytest.approx(min(load, compute) - found.seconds)
    assert found.seconds < 0.6 * min(load, compute)


def test_from_the_host_it_is_loaded() -> None:
    found = plan(Stored(8192, suffix=64), [HOST], RestoreTerms(COMPUTE, page=64, gain=0.002))
    assert (found.way, found.split, found.channel) == (PrefixWay.LOAD, 0, "host")
    assert found.saved == 0.0
    assert found.reason in (WayReason.LOAD, WayReason.SMALL_GAIN)


def test_of_two_sources_the_faster_one_loads() -> None:
    assert plan(Stored(8192), [STORAGE, HOST], TERMS).channel == "host"
    behind = Channel("host", rate=400_000.0, queued=400_000)
    assert plan(Stored(8192), [STORAGE, behind], TERMS).channel == "storage"


@pytest.mark.parametrize(
    ("stored", "channels", "terms", "way", "reason"),
    [
        (Stored(0, 512, 64), [STORAGE], TERMS, PrefixWay.RECOMPUTE, WayReason.NOTHING),
        (Stored(4096), [], TERMS, PrefixWay.RECOMPUTE, WayReason.NO_SOURCE),
        (Stored(4096), [Channel("storage", 0.0)], TERMS, PrefixWay.RECOMPUTE, WayReason.NO_SOURCE),
        (
            Stored(4096),
            [Channel("storage", 25e3, 9.0)],
            TERMS,
            PrefixWay.RECOMPUTE,
            WayReason.COMPUTE,
        ),
        (
            Stored(64),
            [Channel("storage", 1e6)],
            RestoreTerms(COMPUTE, 64),
            PrefixWay.LOAD,
            WayReason.LOAD,
        ),
        (
            Stored(4096),
            [STORAGE],
            RestoreTerms(COMPUTE, 64, gain=1.0),
            PrefixWay.RECOMPUTE,
            WayReason.SMALL_GAIN,
        ),
        (Stored(4096), [STORAGE], RestoreTerms(COMPUTE, 64), PrefixWay.TOKENS, WayReason.BOTH),
        (
            Stored(4096),
            [STORAGE],
            RestoreTerms(COMPUTE, 64, 32, 8192),
            PrefixWay.LAYERS,
            WayReason.BOTH,
        ),
        (
            Stored(4096),
            [STORAGE],
            RestoreTerms(COMPUTE, 64, 32, 4096),
            PrefixWay.TOKENS,
            WayReason.BOTH,
        ),
        (Stored(256), [STORAGE], TERMS, PrefixWay.LAYERS, WayReason.BOTH),
    ],
)
def test_the_reason_is_said(stored, channels, terms, way, reason) -> None:
    found = plan(stored, channels, terms)
    assert (found.way, found.reason) == (way, reason)
    assert (found.split > 0) == (way in (PrefixWay.TOKENS, PrefixWay.LAYERS))
    assert bool(found.channel) == (way is not PrefixWay.RECOMPUTE)


@given(
    st.integers(0, 20_000),
    st.integers(0, 20_000),
    st.integers(0, 2048),
    st.floats(1e3, 1e7),
    st.floats(0.0, 0.1),
    st.sampled_from([None, 1024]),
)
def test_no_plan_is_worse_than_the_better_source(gap, prefix, suffix, rate, latency, crossover):
    channel = Channel("storage", rate, latency)
    found = plan(
        Stored(gap, prefix, suffix),
        [channel],
        RestoreTerms(COMPUTE, page=16, layers=32, crossover=crossover),
    )
    computed = COMPUTE(prefix, gap + suffix)
    loaded = channel.seconds(gap) + COMPUTE(prefix + gap, suffix) if gap else math.inf
    assert found.seconds <= min(computed, loaded) * (1 + 1e-12)
    assert found.saved == pytest.approx(min(computed, loaded) - found.seconds, abs=1e-9)


def test_bad_values_are_named() -> None:
    with pytest.raises(ValueError, match="gap is -1; allowed is 0 or more"):
        Stored(-1)
    with pytest.raises(ValueError, match="storage: rate is nan; allowed is 0 or more"):
        Channel("storage", math.nan)
