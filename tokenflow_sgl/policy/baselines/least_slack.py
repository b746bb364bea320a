"""Least slack first: the classic real-time rule, without any regard for what a switch costs.

C. L. Liu and J. Layland's deadline scheduling ("Scheduling algorithms for multiprogramming in a
hard-real-time environment", 1973) with the moment at which a reader runs dry as the deadline.
"""

from __future__ import annotations

from tokenflow_sgl.contract import FloatArray, IntArray, State
from tokenflow_sgl.policy.baselines.ordered import OrderedPolicy


class LeastSlackPolicy(OrderedPolicy):
    """Runs the stream that runs dry first. interval: seconds between two rankings."""

    def __init__(self, interval: float = 0.2) -> None:
        super().__init__(interval)

    def rank(self, state: State, index: IntArray) -> FloatArray:
        """Rank streams by when their readers run out of text."""
        return state.streams.runs_dry[index]
