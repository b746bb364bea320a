"""Readers' rates and mixes of them."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix, parse_rates


def rng(seed=0):
    return np.random.default_rng(seed)


def test_rates():
    drawn = RateMix((15, 20), (3, 1)).sample(rng(), 8000)
    assert (drawn == 15).mean() == pytest.approx(0.75, abs=0.02)
    assert set(RateMix((15, 20, 25, 30)).sample(rng(), 100)) == {15, 20, 25, 30}
    assert RateMix((20,)).sample(rng(), 2).tolist() == [20, 20]


@pytest.mark.parametrize("text", ["20", "15/20/25/30", "15=3/20=1", "0.5"])
def test_rates_are_read_and_spelt(text):
    assert str(parse_rates(text)) == text


@pytest.mark.parametrize("text", ["", "x", "1/", "1=2/3", "0", "-1", "nan", "1=0", "inf"])
def test_bad_rates(text):
    with pytest.raises(TraceError, match=r"rate|weight"):
        parse_rates(text)
