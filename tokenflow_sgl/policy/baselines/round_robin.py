"""Round robin: each stream in turn for a quantum, however far ahead or behind its reader is."""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, State
from tokenflow_sgl.policy.baselines.ordered import OrderedPolicy


class RoundRobinPolicy(OrderedPolicy):
    """Time slices. quantum: seconds that a stream runs before it gives way."""

    def __init__(self, quantum: float = 2.0) -> None:
        super().__init__(interval=quantum / 4)
        self.quantum = quantum

    def rank(self, state: State, index: IntArray) -> FloatArray:
        """Streams in their quantum, then those out for longest, then those that had their turn."""
        streams = state.streams
        since = streams.since[index]
        spent = state.now - since
        running = streams.running[index]
        group = np.where(running, np.where(spent < self.quantum, 0.0, 2.0), 1.0)
        # Within a group by time; the groups lie further apart than any two times.
        return group * 1e9 + since
