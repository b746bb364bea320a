"""Lengths of prompts and answers: moments and shapes, with fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.lab.traces.generators.mixes import MIXES, LengthMix, MixPart, long_context
from tokenflow_sgl.lab.traces.generators.request_lengths import (
    EmpiricalLengths,
    FixedLengths,
    LogNormalLengths,
    NormalLengths,
)


def rng(seed=0):
    return np.random.default_rng(seed)


def test_normal_lengths_are_clipped_and_cut():
    drawn = NormalLengths(512).sample(rng(), 100_000)
    assert drawn.mean() == pytest.approx(511.5, rel=0.005)
    assert drawn.std() == pytest.approx(128, rel=0.02)
    assert drawn.dtype == np.int64
    wide = NormalLengths(100, sd=5.0).sample(rng(), 1000)
    assert (wide.min(), wide.max()) == (16, 250)


def test_log_normal_lengths():
    drawn = LogNormalLengths(1000, cv=0.8).sample(rng(), 200_000)
    assert drawn.mean() == pytest.approx(1000, rel=0.02)
    assert drawn.std() / drawn.mean() == pytest.approx(0.8, rel=0.03)
    clipped = LogNormalLengths(1000, cv=3, low=500, high=600).sample(rng(), 100)
    assert 500 <= clipped.min() <= clipped.max() <= 600
    assert set(LogNormalLengths(7, cv=0).sample(rng(), 5)) == {7}


def test_empirical_lengths_keep_pairs_together():
    requests = tuple(TraceRequest(0.0, n, 1000 + n) for n in range(1, 6))
    source = Trace("s", requests, Accounting(5, 5))
    prompts, outputs = EmpiricalLengths(source).pairs(rng(), 1000)
    assert set(prompts) == {1, 2, 3, 4, 5}
    assert np.array_equal(outputs, prompts + 1000)


@pytest.mark.parametrize("name", MIXES)
def test_long_context_mixes(name):
    limit = 1024 * int(name.removeprefix("long-context-").removesuffix("k"))
    prompts, outputs = MIXES[name].pairs(rng(), 20_000)
    assert prompts.min() >= 1
    assert outputs.min() >= 1
    assert (prompts + outputs).max() <= limit
    # Half are long: their mean is half the limit, the short ones' a 32nd.
    assert (prompts > limit / 8).mean() == pytest.approx(0.5, abs=0.03)
    assert np.corrcoef(prompts, outputs)[0, 1] < 0.05


def test_long_share():
    prompts, _ = long_context(8192, long_share=0.9).pairs(rng(), 20_000)
    assert (prompts > 1024).mean() == pytest.approx(0.9, abs=0.03)


def test_mix_by_hand():
    parts = (
        MixPart(3, FixedLengths(10), FixedLengths(1)),
        MixPart(1, FixedLengths(99), FixedLengths(90)),
    )
    prompts, outputs = LengthMix(parts, 100).pairs(rng(), 8000)
    assert set(zip(prompts.tolist(), outputs.tolist(), strict=True)) == {(10, 1), (50, 50)}
    assert (prompts == 10).mean() == pytest.approx(0.75, abs=0.02)
