"""When requests come: moments and shapes, with fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.generators.arrivals import (
    ARRIVALS,
    BurstArrivals,
    DiurnalArrivals,
    GammaArrivals,
    OnOffArrivals,
    PoissonArrivals,
)
from tokenflow_sgl.lab.traces.parameters import choose, spell

EXAMPLES = {
    "burst": BurstArrivals(size=7, every_s=3, spread_s=1),
    "poisson": PoissonArrivals(4),
    "gamma": GammaArrivals(4, cv=2.5),
    "onoff": OnOffArrivals(8, on_s=5, off_s=10, off_rate=0.5),
    "diurnal": DiurnalArrivals(4, amplitude=0.8, period_s=100, peak_s=30),
}


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("arrivals", EXAMPLES.values(), ids=EXAMPLES)
def test_arrivals_keep_to_their_extent(arrivals):
    for count in (1, 2, 1000):
        times = arrivals.times(rng(), requests=count)
        assert times.shape == (count,)
        assert np.all(np.diff(times) >= 0)
        assert times[0] >= 0
    for duration in (0.5, 60.0, 500.0):
        times = arrivals.times(rng(), duration_s=duration)
        assert np.all(np.diff(times) >= 0)
        slack = getattr(arrivals, "spread_s", 0.0)
        assert not len(times) or 0 <= times[0] <= times[-1] < duration + slack


@pytest.mark.parametrize("arrivals", EXAMPLES.values(), ids=EXAMPLES)
def test_arrivals_are_deterministic(arrivals):
    first = arrivals.times(rng(1), requests=50)
    assert np.array_equal(first, arrivals.times(rng(1), requests=50))
    assert not np.array_equal(first, arrivals.times(rng(2), requests=50))


@pytest.mark.parametrize("arrivals", EXAMPLES.values(), ids=EXAMPLES)
@pytest.mark.parametrize(
    "extent",
    [{}, {"requests": 1, "duration_s": 1.0}, {"requests": 0}, {"duration_s": float("nan")}],
)
def test_arrivals_need_one_extent(arrivals, extent):
    with pytest.raises(TraceError):
        arrivals.times(rng(), **extent)


@pytest.mark.parametrize("name", ["poisson", "gamma", "diurnal"])
@pytest.mark.parametrize("extent", [{"requests": 40_000}, {"duration_s": 10_000.0}])
def test_mean_rate(name, extent):
    times = EXAMPLES[name].times(rng(), **extent)
    assert len(times) / times[-1] == pytest.approx(4, rel=0.03)


@pytest.mark.parametrize("cv", [0.3, 1.0, 4.0])
def test_cv_of_gamma_gaps(cv):
    gaps = np.diff(GammaArrivals(2, cv=cv).times(rng(), requests=100_000))
    assert gaps.mean() == pytest.approx(0.5, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_poisson_counts_have_equal_mean_and_variance():
    times = PoissonArrivals(5).times(rng(), duration_s=20_000.0)
    counts = np.bincount((times // 2).astype(int))
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.05)


def test_bursts_by_hand():
    assert BurstArrivals().times(rng(), requests=3).tolist() == [0, 0, 0]
    bursts = BurstArrivals(size=2, every_s=10)
    assert bursts.times(rng(), requests=5).tolist() == [0, 0, 10, 10, 20]
    assert bursts.times(rng(), duration_s=10.0).tolist() == [0, 0]
    assert bursts.times(rng(), duration_s=10.5).tolist() == [0, 0, 10, 10]
    assert BurstArrivals(size=2).times(rng(), duration_s=99.0).tolist() == [0, 0]
    with pytest.raises(TraceError, match="3 requests do not fit into one burst of 2"):
        BurstArrivals(size=2).times(rng(), requests=3)
    with pytest.raises(TraceError, match="size must be given with a duration"):
        BurstArrivals().times(rng(), duration_s=1.0)


def test_on_off_phases_have_their_rates():
    times = OnOffArrivals(8, on_s=5, off_s=10, off_rate=0.5).times(rng(), duration_s=15_000.0)
    on = times % 15 < 5
    assert on.sum() / 5000 == pytest.approx(8, rel=0.03)
    assert (~on).sum() / 10_000 == pytest.approx(0.5, rel=0.05)
    silent = OnOffArrivals(8, on_s=5, off_s=10).times(rng(), requests=5000)
    assert np.all(silent % 15 <= 5)


def test_diurnal_rate_follows_the_cosine():
    times = EXAMPLES["diurnal"].times(rng(), duration_s=50_000.0)
    phase = times % 100
    peak, trough = (abs(phase - 30) < 5).sum(), (abs(phase - 80) < 5).sum()
    # Means of 1 +- 0.8 cos over a tenth of the period around peak and trough.
    mean_cos = np.sin(np.pi / 10) / (np.pi / 10)
    assert peak / 5000 == pytest.approx(4 * (1 + 0.8 * mean_cos), rel=0.03)
    assert trough / 5000 == pytest.approx(4 * (1 - 0.8 * mean_cos), rel=0.06)


@pytest.mark.parametrize("arrivals", EXAMPLES.values(), ids=EXAMPLES)
def test_spelling_and_choosing_are_inverse(arrivals):
    assert choose("arrivals", ARRIVALS, spell(ARRIVALS, arrivals)) == arrivals
