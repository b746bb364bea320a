"""Moments and shapes of what generators draw, with fixed seeds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.traces import Accounting, Trace, TraceConfig, TraceError, TraceRequest
from tokenflow_sgl.traces import make_trace as make
from tokenflow_sgl.traces.arrivals import (
    ARRIVALS,
    BurstArrivals,
    DiurnalArrivals,
    GammaArrivals,
    OnOffArrivals,
    PoissonArrivals,
)
from tokenflow_sgl.traces.lengths import (
    LENGTHS,
    EmpiricalLengths,
    FixedLengths,
    LogNormalLengths,
    NormalLengths,
    SeparateLengths,
)
from tokenflow_sgl.traces.mixes import MIXES, LengthMix, MixPart, long_context
from tokenflow_sgl.traces.parameters import choose, spell, stream
from tokenflow_sgl.traces.priorities import MarkovPriorities, RandomPriorities
from tokenflow_sgl.traces.rates import RateMix, parse_rates
from tokenflow_sgl.traces.sessions import SessionConfig

EXAMPLES = {
    "burst": BurstArrivals(size=7, every_s=3, spread_s=1),
    "poisson": PoissonArrivals(4),
    "gamma": GammaArrivals(4, cv=2.5),
    "onoff": OnOffArrivals(8, on_s=5, off_s=10, off_rate=0.5),
    "diurnal": DiurnalArrivals(4, amplitude=0.8, period_s=100, peak_s=30),
}


def rng(seed=0):
    return np.random.default_rng(seed)


# ---- arrivals -----------------------------------------------------------------------


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


# ---- lengths ------------------------------------------------------------------------


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


# ---- rates --------------------------------------------------------------------------


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


# ---- priorities ---------------------------------------------------------------------


def levels_over_time(pattern, count=40, seed=0):
    """Priorities per tick, shape (ticks, requests), of requests that all arrive at 0."""
    first, updates = pattern.draw(rng(seed), np.zeros(count))
    now, ticks = first.copy(), {}
    for update in updates:
        now[update.index] = update.priority
        ticks[update.time_s] = now.copy()
    return np.array([ticks[time] for time in sorted(ticks)])


def persistence(levels):
    """Correlation of a request's priority with its next one."""
    return np.corrcoef(levels[:-1].ravel(), levels[1:].ravel())[0, 1]


def test_random_priorities_have_no_memory():
    pattern = RandomPriorities(frequency=2, levels=4, active_s=100)
    levels = levels_over_time(pattern)
    assert len(levels) >= 199
    assert np.bincount(levels.ravel()) / levels.size == pytest.approx([0.25] * 4, abs=0.02)
    assert abs(persistence(levels)) < 0.05


def test_markov_priorities_have_locality():
    def pattern(locality):
        return MarkovPriorities(
            frequency=2, levels=10, active_s=100, slots=8, locality=locality, memory=0.5
        )

    local, arbitrary = levels_over_time(pattern(0.95)), levels_over_time(pattern(0.0))
    # An exponential average of independent draws has a correlation of its memory.
    assert persistence(arbitrary) == pytest.approx(0.5, abs=0.1)
    assert persistence(local) > 0.8
    # With locality the same few are served again and again.
    assert np.sort(local.mean(axis=0))[-8:].sum() > 1.5 * np.sort(arbitrary.mean(axis=0))[-8:].sum()


@pytest.mark.parametrize(
    "pattern",
    [
        RandomPriorities(frequency=1.5, levels=3, active_s=4),
        MarkovPriorities(frequency=1.5, levels=3, active_s=4, slots=2),
    ],
)
def test_only_active_requests_change_and_only_really(pattern):
    arrivals = np.sort(rng().uniform(5, 50, 60))
    first, updates = pattern.draw(rng(1), arrivals)
    assert updates
    assert [u.time_s for u in updates] == sorted(u.time_s for u in updates)
    now = first.copy()
    for update in updates:
        assert arrivals[update.index] <= update.time_s < arrivals[update.index] + 4
        assert 0 <= update.priority < 3
        assert now[update.index] != update.priority
        now[update.index] = update.priority
        assert update.time_s * 1.5 == pytest.approx(round(update.time_s * 1.5))


def test_requests_are_active_from_their_arrival_to_before_their_end():
    pattern = RandomPriorities(frequency=1, levels=1_000_000, active_s=3)
    _, updates = pattern.draw(rng(), np.array([0.0, 2.0]))
    assert [(u.time_s, u.index) for u in updates] == [
        (0, 0),
        (1, 0),
        (2, 0),
        (2, 1),
        (3, 1),
        (4, 1),
    ]


def test_too_many_priorities_are_refused():
    pattern = RandomPriorities(frequency=1000, levels=2, active_s=1e6)
    with pytest.raises(TraceError, match="lower frequency or active_s"):
        pattern.draw(rng(), np.zeros(1000))


# ---- sessions and traces ------------------------------------------------------------


def config(**changes):
    base = {
        "name": "t",
        "arrivals": PoissonArrivals(2),
        "lengths": SeparateLengths(NormalLengths(100), FixedLengths(50)),
        "requests": 300,
    }
    return TraceConfig(**{**base, **changes})


def test_sessions(is_balanced):
    sessions = SessionConfig(turns=4, think_s=6, system_tokens=32, groups=3)
    trace = make(config(sessions=sessions, rates=RateMix((10, 20)), requests=2000))
    assert is_balanced(trace)
    by_session: dict[str, list[TraceRequest]] = {}
    for request in trace.requests:
        by_session.setdefault(request.session, []).append(request)
    assert len(by_session) == 2000
    assert len(trace.requests) / 2000 == pytest.approx(4, rel=0.05)
    for turns in by_session.values():
        assert [r.turn for r in turns] == list(range(len(turns)))
        assert len({(r.arrival_s, r.rate, r.prefix) for r in turns}) == 1
        assert turns[0].think_s == 0
        for before, after in itertools.pairwise(turns):
            assert after.prompt_tokens > before.prompt_tokens + before.output_tokens
    thinks = [r.think_s for r in trace.requests if r.turn]
    assert np.mean(thinks) == pytest.approx(6, rel=0.05)
    assert {r.prefix[0].id for r in trace.requests} == {0, 1, 2}
    assert {r.prefix[0].tokens for r in trace.requests} == {32}


def test_equal_configs_make_equal_traces():
    assert make(config()) == make(config())
    assert make(config()) != make(config(seed=1))


def test_rates_change_nothing_else():
    plain, mixed = make(config()), make(config(rates=RateMix((10, 20))))
    assert [(r.arrival_s, r.prompt_tokens) for r in plain.requests] == [
        (r.arrival_s, r.prompt_tokens) for r in mixed.requests
    ]
    assert {r.rate for r in mixed.requests} == {10.0, 20.0}


def test_a_duration_without_arrivals_is_refused():
    with pytest.raises(TraceError, match="nothing arrives within 1e-09 s"):
        make(config(requests=None, duration_s=1e-9))


# ---- parameters ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("poison:rate=1", "arrivals 'poison' is unknown; allowed are burst, poisson, gamma"),
        ("poisson", "arrivals poisson: rate must be given"),
        ("poisson:rate=1,cv=2", "arrivals poisson: 'cv' is unknown; allowed are rate"),
        ("poisson:rate", "'rate' is not of the form key=value"),
        ("poisson:rate=x", "arrivals poisson: rate is 'x'; allowed is a number"),
        ("poisson:rate=0", "PoissonArrivals: rate is 0.0; allowed is a number above 0"),
        ("poisson:rate=nan", "PoissonArrivals: rate is nan"),
        ("burst:size=1.5", "arrivals burst: size is '1.5'; allowed is a whole number"),
        ("burst:size=0", "BurstArrivals: size is 0; allowed is a number of at least 1"),
        ("gamma:rate=1,cv=1000", "cv is 1000.0; allowed is a number of at least 0.01 and at most"),
        ("diurnal:rate=1,amplitude=2", "amplitude is 2.0"),
        ("onoff:rate=1,on_s=1", "arrivals onoff: off_s must be given"),
    ],
)
def test_bad_choices(text, problem):
    with pytest.raises(TraceError, match=problem):
        choose("arrivals", ARRIVALS, text)


@pytest.mark.parametrize(
    ("kind", "changes", "problem"),
    [
        (NormalLengths, {"mean": 10}, "low is 16; allowed is at most the mean, 10"),
        (LogNormalLengths, {"mean": 10, "cv": 1, "low": 9, "high": 8}, "low is 9"),
        (FixedLengths, {"tokens": 0}, "tokens is 0"),
        (SessionConfig, {"turns": 0.5, "think_s": 0}, "turns is 0.5"),
        (RandomPriorities, {"frequency": 1, "levels": 1, "active_s": 1}, "levels is 1"),
        (LengthMix, {"parts": (), "max_tokens": 100}, "parts must be given"),
        (RateMix, {"rates": ()}, "at least one rate"),
        (RateMix, {"rates": (1, 2), "weights": (1,)}, "2 rates but 1 weights"),
    ],
)
def test_bad_configs(kind, changes, problem):
    with pytest.raises(TraceError, match=problem):
        kind(**changes)


@pytest.mark.parametrize("arrivals", EXAMPLES.values(), ids=EXAMPLES)
def test_spelling_and_choosing_are_inverse(arrivals):
    assert choose("arrivals", ARRIVALS, spell(ARRIVALS, arrivals)) == arrivals


def test_somebodys_own_generator_is_shown_as_python_shows_it():
    assert spell(LENGTHS, PoissonArrivals(1)) == "PoissonArrivals(rate=1)"


@given(seed=st.integers(0, 2**64))
def test_purposes_have_streams_of_their_own(seed):
    assert stream(seed, "a").random() == stream(seed, "a").random()
    assert stream(seed, "a").random() != stream(seed, "b").random()


def test_negative_seeds_are_refused():
    with pytest.raises(TraceError, match="seed is -1"):
        stream(-1, "a")
    with pytest.raises(TraceError, match="seed is -1"):
        config(seed=-1)
