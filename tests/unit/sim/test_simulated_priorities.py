"""Priorities in the simulated engine: the same rule as in the live one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.qos import play

BURST = [(0.05 * number, 100, 200) for number in range(24)]
"""24 answers of 200 tokens, 7,200 tokens of KV in the end; 1,000 fit."""


@pytest.fixture
def prioritised(trace):
    def make(*priorities: int | None):
        made = trace(*BURST)
        requests = (
            replace(request, priority=priorities[number % len(priorities)])
            for number, request in enumerate(made.requests)
        )
        return replace(made, requests=tuple(requests))

    return make


def run(made, device, options, **settings: float):
    """With known lengths all are admitted at once: what differs is whose turn it is."""
    config = WorkingSetConfig(**settings)
    given = options(host_tokens=8000)
    return simulate(made, device, given, config=config, known_lengths=True)


def waited(done, times_of, remainder: int) -> float:
    """Seconds that every other stream waited for the first token and stalled, mean."""
    return float(
        np.mean(
            [
                times[0] - BURST[index][0] + float(play(times, 10.0).stalls.sum())
                for index, times in times_of(done).items()
                if index % 2 == remainder
            ]
        )
    )


def test_higher_priority_waits_less_and_lower_is_served(
    prioritised, times_of, device, options
) -> None:
    done = run(prioritised(0, 2), device, options)
    assert all(len(times) == 200 for times in times_of(done).values())
    assert waited(done, times_of, 1) < 0.5 * waited(done, times_of, 0)


def test_a_factor_of_one_and_equal_priorities_change_nothing(
    prioritised, times_of, device, options
) -> None:
    plain = times_of(run(prioritised(None), device, options))
    assert times_of(run(prioritised(0, 2), device, options, priority_weight=1.0)) == plain
    assert times_of(run(prioritised(3), device, options)) == plain
