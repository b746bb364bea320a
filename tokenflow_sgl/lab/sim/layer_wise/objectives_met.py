"""What a served batch attains: times between tokens and per token, with and without a deposit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.sim.layer_wise.step_loop import Served
from tokenflow_sgl.placement.deposit import delivery_times

ROUNDING = 1e-9
"""Seconds by which an objective may be missed."""


@dataclass(frozen=True, slots=True)
class Attained:
    """Figures of one run; times in seconds.

    Attributes:
        tbt: Share of the times between two tokens that keep the objective.
        tpot: Share of the requests whose mean time per token keeps it.
        tbt_p95, tbt_p99, tpot_p99: Percentiles.
        end_to_end: From arrival to the last token, mean.
        ttft, ttft_p95: From arrival to the first token, mean and percentile.
        requests: Per second, until the last one has ended.
    """

    tbt: float
    tpot: float
    tbt_p95: float
    tbt_p99: float
    tpot_p99: float
    end_to_end: float
    ttft: float
    ttft_p95: float
    requests: float


def attained(served: Served, objective: float, *, deposit: bool = False) -> Attained:
    """The figures of a run against an objective between tokens and per token.

    Args:
        served: The run.
        objective: Seconds.
        deposit: Tokens are delivered at this interval, not as they are generated.
    """
    times = served.times
    if deposit:
        times = tuple(delivery_times(each, objective) for each in times)
    several = [each for each in times if len(each) > 1]
    gaps = np.concatenate([np.diff(each) for each in several])
    means = np.array([(each[-1] - each[0]) / (len(each) - 1) for each in several])
    ends = np.array([each[-1] for each in times])
    waited = np.array([each[0] for each in times]) - served.arrival
    within = objective + ROUNDING
    return Attained(
        tbt=float((gaps <= within).mean()),
        tpot=float((means <= within).mean()),
        tbt_p95=float(np.percentile(gaps, 95)),
        tbt_p99=float(np.percentile(gaps, 99)),
        tpot_p99=float(np.percentile(means, 99)),
        end_to_end=float((ends - served.arrival).mean()),
        ttft=float(waited.mean()),
        ttft_p95=float(np.percentile(waited, 95)),
        requests=len(ends) / float(ends.max() - served.arrival.min()),
    )
