"""Tensor-parallel shards and pipeline stages, and the paper's ablation."""

from __future__ import annotations

import math

import pytest

from tokenflow_sgl.restoration import Channel, Pipeline, boundary_bytes, in_chunks, sharded

TOKENS = 100_000


def linear(seconds: float):
    return lambda prefix, tokens: tokens * seconds / TOKENS


def loading(seconds: float):
    return lambda tokens: tokens * seconds / TOKENS


def test_the_paper_s_ablation() -> None:
    """0.21 s with boundary activations, 0.29 s without, 24 % below vLLM (CacheFlow section 4.3).

    With S = 2 stages, Tc and Tio of the whole model: at once Tc Tio / (Tc + Tio) / S; in turn
    2 Tc Tio / (2 Tc + Tio) / S. From the two times follow both costs, and from these what the
    stages take to compute everything, Tc / S: the paper's third figure, which was not put in.
    """
    ratio = 0.29 / 0.21
    over = (2 * ratio - 2) / (2 - ratio)  # Tio / Tc
    tc = 2 * 0.21 * (1 + over) / over
    tio = over * tc
    pipeline = Pipeline(2)

    def seconds(way) -> float:
        return way(0, TOKENS, compute=linear(tc), fetch=loading(tio), page=1).seconds

    assert seconds(pipeline.at_once) == pytest.approx(0.21, abs=1e-4)
    assert seconds(pipeline.in_turn) == pytest.approx(0.29, abs=1e-4)
    assert 1 - 0.29 / (tc / 2) == pytest.approx(0.24, abs=0.005)


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
def test_stages_at_once_take_so_many_times_less(stages) -> None:
    alone = Pipeline(1).at_once(0, TOKENS, compute=linear(1.0), fetch=loading(1.5), page=1)
    split = Pipeline(stages).at_once(0, TOKENS, compute=linear(1.0), fetch=loading(1.5), page=1)
    assert split.seconds == pytest.approx(alone.seconds / stages, rel=1e-3)


def test_boundary_activations_take_link_time() -> None:
    # llama3-8b: 8 KiB per token and boundary, 128 KiB of KV, 64 KiB of it in each of two stages.
    pipeline = Pipeline.of(2, hidden=4096, kv_bytes_per_token=131072)
    assert boundary_bytes(4096) == 8192
    assert pipeline.boundary == 0.125
    costs = {"compute": linear(1.0), "fetch": loading(1.0), "page": 1}
    free = Pipeline(2).at_once(0, TOKENS, **costs)
    split = pipeline.at_once(0, TOKENS, **costs)
    # Half of the tokens are computed, an eighth of half a link's time is theirs: 17 parts of 32.
    assert split.seconds == pytest.approx(0.25 * 16 / 15, rel=1e-3)
    assert free.seconds < split.seconds < pipeline.in_turn(0, TOKENS, **costs).seconds


def test_activations_that_are_larger_than_the_kv_are_not_read() -> None:
    split = Pipeline(4, boundary=1.0).at_once(
        0, TOKENS, compute=linear(0.1), fetch=loading(1.0), page=1
    )
    assert split.head == 0
    assert split.seconds == pytest.approx(0.25)


def test_ranks_load_their_heads_side_by_side() -> None:
    channel = Channel("storage", rate=10_000.0, latency=0.001)
    assert sharded(channel, 4, own_links=True).rate == 40_000.0
    assert sharded(channel, 4, own_links=False) == channel
    with pytest.raises(ValueError, match="ranks is 0; allowed is 1 or more"):
        sharded(channel, 0, own_links=True)


@pytest.mark.parametrize(
    ("stages", "boundary", "message"),
    [
        (0, 0.0, "stages is 0; allowed is 1 or more"),
        (2, -0.1, "boundary is -0.1; allowed is 0 or more"),
        (2, math.nan, "boundary is nan; allowed is 0 or more"),
    ],
)
def test_a_pipeline_has_a_shape(stages, boundary, message) -> None:
    with pytest.raises(ValueError, match=message):
        Pipeline(stages, boundary)


def test_what_is_computed_in_chunks_keeps_its_chunks() -> None:
    compute = in_chunks(lambda n, prefix: 0.01 + n * 1e-5, 1000)
    split = Pipeline(2).at_once(0, 4000, compute=compute, fetch=lambda n: n * 1e-5, page=1)
    assert split.seconds == pytest.approx(
        max(compute(0, split.head) / 2, (4000 - split.head) * 5e-6)
    )
