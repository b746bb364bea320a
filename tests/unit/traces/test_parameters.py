"""How generators are named on the command line, and what they refuse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.lab.traces import TraceConfig, TraceError
from tokenflow_sgl.lab.traces.generators.arrivals import ARRIVALS, PoissonArrivals
from tokenflow_sgl.lab.traces.generators.mixes import LengthMix
from tokenflow_sgl.lab.traces.generators.priority_changes import RandomPriorities
from tokenflow_sgl.lab.traces.generators.reading_rates import RateMix
from tokenflow_sgl.lab.traces.generators.request_lengths import (
    LENGTHS,
    FixedLengths,
    LogNormalLengths,
    NormalLengths,
    SeparateLengths,
)
from tokenflow_sgl.lab.traces.generators.sessions import SessionConfig
from tokenflow_sgl.lab.traces.parameters import choose, spell, stream


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("poison:rate=1", "arrivals 'poison' is unknown; allowed are burst, poisson, gamma"),
        ("poisson", "arrivals poisson: rate must be given"),
        ("poisson:rate=1,cv=2", "arrivals poisson: 'cv' is unknown; allowed are rate"),
        ("poisson:rate", "'rate' is not of the form key=value"),
        ("poisson:rate=x", "arrivals poisson: rate is 'x'; allowed is a number"),
        (
            "poisson:rate=0",
            "PoissonArrivals: rate is 0.0; allowed is a number of at least 1e-06",
        ),
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


def test_a_users_own_generator_is_shown_as_python_shows_it():
    assert spell(LENGTHS, PoissonArrivals(1)) == "PoissonArrivals(rate=1)"


@given(seed=st.integers(0, 2**64))
def test_purposes_have_streams_of_their_own(seed):
    assert stream(seed, "a").random() == stream(seed, "a").random()
    assert stream(seed, "a").random() != stream(seed, "b").random()


def test_negative_seeds_are_refused():
    with pytest.raises(TraceError, match="seed is -1"):
        stream(-1, "a")
    with pytest.raises(TraceError, match="seed is -1"):
        TraceConfig(
            name="t",
            arrivals=PoissonArrivals(2),
            lengths=SeparateLengths(FixedLengths(10), FixedLengths(50)),
            requests=3,
            seed=-1,
        )
