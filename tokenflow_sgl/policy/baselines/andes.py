"""Andes: the greedy knapsack over what serving a stream adds to its quality of experience.

J. Liu et al., "Andes: Defining and Enhancing Quality-of-Experience in LLM-Based Text Streaming
Services" (2024), section 4: each interval, serve the streams with the largest gain per token of
KV that they hold, and preempt the others by recomputation.

A stream's quality is 1 - S_delay / S_whole, the area between the ideal and the actual reading
curve over the ideal's. The ideal reader gets the first token after `expected_ttft` seconds and
reads on at his rate. A stream that is not served for an interval falls behind by what its slack
does not cover, and all of its remaining text is shifted by that.

As in Andes preemptions are capped at one per request on average: without that streams take turns
in throwing each other's KV away, and no stream gets anywhere.
"""

from __future__ import annotations

import numpy as np

from tokenflow_sgl.contract import FloatArray, IntArray, State
from tokenflow_sgl.policy.baselines.ordered import OrderedPolicy


class AndesPolicy(OrderedPolicy):
    """QoE gain per token of KV, most first.

    interval: seconds between two choices, and the horizon of the gain. expected_ttft: seconds to
    the first token that a reader expects. switches: preemptions per request, on average.
    """

    def __init__(
        self, interval: float = 1.0, expected_ttft: float = 1.0, switches: float = 1.0
    ) -> None:
        super().__init__(interval, recompute=True, switches=switches)
        self.expected_ttft = expected_ttft

    def rank(self, state: State, index: IntArray) -> FloatArray:
        """Rank streams by falling gain per token; those that gain nothing last, shortest first."""
        streams = state.streams
        size = streams.length[index].astype(np.float64)
        return -self.gain(state, index) / size - 1e-12 / size

    def gain(self, state: State, index: IntArray) -> FloatArray:
        """What the quality of each stream loses if it waits for an interval."""
        streams = state.streams
        read, expected = streams.seen[index], streams.read_length_of(index)
        due = streams.runs_dry[index].copy()
        fresh = read == 0
        due[fresh] = streams.arrival[index][fresh] + self.expected_ttft
        behind = np.clip(state.now + self.interval - np.maximum(due, state.now), 0.0, self.interval)
        rate = streams.rate[index]
        # Areas in tokens times seconds: what is still to be read, shifted; and the ideal triangle.
        lost = behind * np.maximum(expected - read, 0.0)
        whole = expected * expected / (2.0 * rate)
        return np.asarray(lost / whole)
