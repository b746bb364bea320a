"""A schedule to measure oneself against: it knows every answer's length, and no reader ever stalls.

Readers start in the order of their arrival, each as early as the engine can promise to all
that started that no buffer will run empty. The engine is a fluid: it does prefills and tokens at
their cheapest (the costs of `bounds`), several at once, ahead of their time if it has time, and
loses nothing to switches, chunks or steps that are not full. So no scheduler that starts readers in
this order and lets no reader stall starts them sooner on average; one that lets them stall may.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.profiles import DeviceProfile
from tokenflow_sgl.lab.sim.engine_options import EngineOptions
from tokenflow_sgl.lab.sim.simulated_streams import FloatArray
from tokenflow_sgl.lab.sim.study.asked import Asked
from tokenflow_sgl.lab.sim.study.bounds import (
    cheapest_prefill,
    decode_costs,
    decode_plane,
    refuse_speculation,
)
from tokenflow_sgl.lab.traces import Trace

GRID = 2048
"""Moments at which demand is compared with the engine's time."""
SEARCHES = 24
"""Halvings of the interval in which a start is searched."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Time to first token under the no-stall schedule: all the waiting that there is."""

    mean_ttft_s: float
    p99_ttft_s: float


def clairvoyant(trace: Trace, profile: DeviceProfile, options: EngineOptions) -> Reference:
    """The no-stall schedule of a trace whose requests come at their `arrival_s`.

    Raises:
        SimulationError: The engine speculates.
    """
    refuse_speculation(options)
    asked = Asked.of(trace)
    per_unshared, per_row, per_token = decode_plane(profile.decode, options.max_total_tokens, asked)
    prefill = cheapest_prefill(profile, options) * asked.own
    work = decode_costs(profile.decode, options.max_total_tokens, asked) + prefill
    whole = float(asked.arrival[-1] + work.sum() + (asked.output / asked.rate).max())
    grid = np.linspace(0.0, whole, GRID)

    def demand(index: int, start: float) -> FloatArray:
        """Engine seconds that one reader has asked for by each moment of the grid."""
        most = float(asked.output[index] - 1)
        tokens = np.clip(asked.rate[index] * (grid - start), 0.0, most)
        grown = (tokens + 1.0) / 2.0
        seconds = tokens * (
            per_unshared * (asked.own[index] + grown)
            + per_token * (asked.prompt[index] + grown)
            + per_row
        )
        return np.where(grid >= start, prefill[index] + seconds, 0.0)

    promised = np.zeros(GRID)
    limit = grid + grid[1]
    starts: list[float] = []
    soonest = computed = 0.0
    for index, came in enumerate(asked.arrival.tolist()):
        computed = max(computed, came) + float(prefill[index])
        low = max(soonest, computed)
        if not (promised + demand(index, low) <= limit).all():
            high = whole
            for _ in range(SEARCHES):
                middle = (low + high) / 2
                if (promised + demand(index, middle) <= limit).all():
                    high = middle
                else:
                    low = middle
            low = high
        soonest = low
        starts.append(low)
        promised += demand(index, low)
    waited = np.array(starts) - asked.arrival
    return Reference(float(waited.mean()), float(np.percentile(waited, 99)))
