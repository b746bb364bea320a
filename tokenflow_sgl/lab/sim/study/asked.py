"""What a trace asks for, as arrays: what bounds and reference schedules work on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.simulated_streams import DEFAULT_RATE, FloatArray, IntArray
from tokenflow_sgl.lab.traces import Trace


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests in the order of their arrival, at their `arrival_s` even if they are later turns.

    arrival: Seconds after the first one. prompt, output: Tokens. own: Prompt tokens that no other
    prompt has at that place, 1 at least. rate: Tokens per second that the reader consumes.
    """

    arrival: FloatArray
    prompt: IntArray
    own: IntArray
    output: IntArray
    rate: FloatArray

    @staticmethod
    def of(trace: Trace) -> Asked:
        """The requests of a trace."""
        requests = sorted(trace.requests, key=lambda request: request.arrival_s)
        arrival = np.array([request.arrival_s for request in requests])
        prompt = np.array([request.prompt_tokens for request in requests], dtype=np.int64)
        return Asked(
            arrival - arrival[0],
            prompt,
            np.maximum(prompt - Prefixes(requests, {}).shared, 1),
            np.array([request.output_tokens for request in requests], dtype=np.int64),
            np.array([request.rate or DEFAULT_RATE for request in requests]),
        )

    @property
    def tokens(self) -> FloatArray:
        """Output tokens that are decoded; the first one of each comes from the prefill."""
        return (self.output - 1).astype(np.float64)

    def context(self, tokens: FloatArray, *, own: bool = False) -> FloatArray:
        """KV tokens that decoding `tokens` of each answer reads, all of them or the unshared.

        The step that computes the k-th token (k = 2, 3 ...) reads prompt + k - 1 of them.
        """
        prompt = self.own if own else self.prompt
        return np.asarray(tokens * (prompt + (tokens + 1.0) / 2.0))
