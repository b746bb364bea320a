"""Pipeline stages played chunk by chunk, beside what the formulas of `Pipeline` say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.restoration import Channel, Pipeline, Seconds, play_stages

TOKENS = 64_000


def linear(seconds: float) -> Seconds:
    """So long for all tokens."""
    return lambda prefix, tokens: tokens * seconds / TOKENS


def played(
    pipeline: Pipeline, computing: float, loading: float, *, stored: bool, chunk: int = 64
) -> Any:
    """By the seconds that computing and loading all of it would take on one device."""
    return play_stages(
        pipeline,
        TOKENS,
        compute=linear(computing),
        channel=Channel("storage", TOKENS / loading),
        chunk=chunk,
        page=16,
        stored=stored,
    )


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("boundary", [0.0, 0.125])
@pytest.mark.parametrize(("computing", "loading"), [(1.0, 1.0), (1.0, 3.0), (2.0, 1.0)])
def test_in_small_chunks_it_is_as_the_formula_says(stages, boundary, computing, loading) -> None:
    pipeline = Pipeline(stages, boundary if stages > 1 else 0.0)
    said = pipeline.at_once(
        0,
        TOKENS,
        compute=linear(computing),
        fetch=lambda tokens: tokens * loading / TOKENS,
        page=16,
    )
    assert played(pipeline, computing, loading, stored=True).seconds == pytest.approx(
        said.seconds, rel=0.01
    )


def test_the_first_stage_reads_no_activations() -> None:
    first, *others = played(Pipeline(3, 0.25), 1.0, 1.0, stored=True).heads
    assert others[0] == others[1]
    # It has more of the link's time for its tail, and computes less.
    assert first < others[0]


def test_chunks_that_are_handed_on_do_without_stored_activations() -> None:
    """The paper's 0.21 s instead of 0.29 s, with its costs, but for the first chunk's way."""
    computing, loading = 0.762, 0.936
    at_once = played(Pipeline(2), computing, loading, stored=True).seconds
    assert at_once == pytest.approx(0.21, abs=0.001)
    handed_on = played(Pipeline(2), computing, loading, stored=False).seconds
    assert handed_on == pytest.approx(at_once, rel=0.01)
    coarse = played(Pipeline(2), computing, loading, stored=False, chunk=8000).seconds
    assert handed_on < coarse < 0.29
    read = played(Pipeline(2, 0.125), computing, loading, stored=True).seconds
    assert read > handed_on


def test_activations_that_are_larger_than_the_kv_are_not_read() -> None:
    assert played(Pipeline(2, 1.0), 0.01, 1.0, stored=True).heads[1] == 0


@given(
    stages=st.integers(1, 5),
    gap=st.integers(1, 5000),
    boundary=st.floats(0.0, 1.5),
    step=st.floats(1e-6, 1e-2),
    rate=st.floats(10.0, 1e6),
    latency=st.floats(0.0, 0.1),
    stored=st.booleans(),
)
def test_never_later_than_loading_and_never_sooner_than_both(
    stages, gap, boundary, step, rate, latency, stored
) -> None:
    def compute(prefix: int, tokens: int) -> float:
        return tokens * step

    done = play_stages(
        Pipeline(stages, boundary),
        gap,
        compute=compute,
        channel=Channel("storage", rate, latency),
        chunk=64,
        page=16,
        stored=stored,
    )
    assert len(done.heads) == stages
    assert all(0 <= head <= gap for head in done.heads)
    chunk = 2 * stages * compute(0, 64)
    assert done.seconds <= latency + gap / rate / stages + chunk + 16 / rate + 1e-9
    both = gap / (1 / step + rate)
    assert done.seconds >= both / stages * (1 - 1e-9) - 16 * step


@pytest.mark.parametrize(
    ("given_", "message"),
    [
        ({"gap": 0}, "gap is 0; allowed is 1 or more"),
        ({"chunk": 24}, "chunk is 24; allowed are multiples of 16"),
        ({"chunk": 8}, "chunk is 8; allowed are multiples of 16"),
        ({"channel": Channel("storage", 0.0)}, "rate is 0.0; allowed is above 0"),
    ],
)
def test_bad_values_are_named(given_, message) -> None:
    asked: dict[str, Any] = {
        "gap": 100,
        "compute": linear(1.0),
        "channel": Channel("storage", 1000.0),
        "chunk": 64,
        "page": 16,
        "stored": True,
        **given_,
    }
    gap = asked.pop("gap")
    with pytest.raises(ValueError, match=message):
        play_stages(Pipeline(2), gap, **asked)
