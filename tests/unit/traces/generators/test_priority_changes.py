"""FastSwitch's Random and Markov priorities."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.traces import TraceError
from tokenflow_sgl.lab.traces.generators.priority_changes import MarkovPriorities, RandomPriorities


def rng(seed=0):
    return np.random.default_rng(seed)


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
