"""Learns `StepCosts` from the durations of the steps that the engine really ran.

Exponentially weighted least squares on the normal equations, solved with non-negative
coefficients (scipy's NNLS): a step never gets cheaper by doing more. One observation
costs a 3 x 3 rank-one update; the solve runs only when a snapshot is asked for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from tokenflow_sgl.costs.model import Coefficients, StepCosts


class LinearCost:
    """y = c . x with c >= 0, from a stream of (x, y) that may drift.

    features: length of x. memory: observations after which an old one has lost 63 % of
    its weight.
    """

    def __init__(self, features: int, memory: float) -> None:
        self._keep = 1.0 - 1.0 / memory
        self._gram: NDArray[np.float64] = np.zeros((features, features))
        self._moment: NDArray[np.float64] = np.zeros(features)
        self._solution: NDArray[np.float64] | None = None
        self.observations = 0

    def observe(self, x: NDArray[np.float64], y: float) -> None:
        """Take in one step: features `x`, duration `y` in seconds (ignored unless > 0)."""
        if not y > 0.0:
            return
        # Relative error is what matters, so that a 100 ms prefill does not outvote
        # a hundred 5 ms ones.
        scaled = x / y
        self._gram *= self._keep
        self._gram += np.outer(scaled, scaled)
        self._moment *= self._keep
        self._moment += scaled
        self._solution = None
        self.observations += 1

    def coefficients(self) -> NDArray[np.float64] | None:
        """The fitted c, or None before the first observation."""
        if self.observations == 0:
            return None
        if self._solution is None:
            size = np.sqrt(np.diag(self._gram))
            size[size == 0.0] = 1.0
            normal = self._gram / np.outer(size, size)
            # A trace of ridge keeps the factor regular while all steps look alike.
            normal[np.diag_indices_from(normal)] += 1e-9
            factor = np.linalg.cholesky(normal)
            target = np.linalg.solve(factor, self._moment / size)
            self._solution = nnls(factor.T, target)[0] / size
        return self._solution


class OnlineCosts:
    """The three cost models of one engine, learned while it runs."""

    def __init__(self, memory: float = 200.0, decode_memory: float = 2000.0) -> None:
        # Decode steps are many and, while memory is full, all alike: forgetting the others
        # soon would leave nothing to tell the coefficients apart by.
        self._decode = LinearCost(3, decode_memory)
        self._prefill = LinearCost(3, memory)
        self._load = LinearCost(2, memory)

    def observe_decode(self, batch: int, kv_tokens: int, seconds: float) -> None:
        """One decode step of `batch` rows over `kv_tokens` tokens of context."""
        self._decode.observe(np.array([1.0, batch, kv_tokens]), seconds)

    def observe_prefill(self, tokens: int, attention: float, seconds: float) -> None:
        """One prefill step of `tokens` new tokens with `attention` work units."""
        self._prefill.observe(np.array([1.0, tokens, attention]), seconds)

    def observe_load(self, tokens: int, seconds: float) -> None:
        """A host-to-device load of `tokens` that kept a step waiting for `seconds`."""
        self._load.observe(np.array([1.0, tokens]), seconds)

    def snapshot(self) -> StepCosts:
        """The costs as learned so far."""
        load = self._load.coefficients()
        return StepCosts(
            decode=_triple(self._decode),
            prefill=_triple(self._prefill),
            load=None if load is None else (float(load[0]), float(load[1])),
        )


def _triple(model: LinearCost) -> Coefficients | None:
    solution = model.coefficients()
    if solution is None:
        return None
    return float(solution[0]), float(solution[1]), float(solution[2])
