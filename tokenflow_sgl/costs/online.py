"""Learns `StepCosts` from the durations of the steps that the engine really ran.

Exponentially weighted least squares on the normal equations, solved with non-negative
coefficients (scipy's NNLS): a step never gets cheaper by doing more. One observation
costs a 3 x 3 rank-one update; the solve runs only when a snapshot is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from tokenflow_sgl.costs.model import Coefficients, StepCosts

MOST_ATTENTION = 2.5e-4
"""Cost of attending to one key over that of a token's linear layers, at most.

In operations it is 2 * layers * width / parameters: 3e-5 for 8B, 2e-5 for 70B, 7e-5 for 1B
parameters. While all prompts are about as long, tokens and attention grow together: without a
bound, noise could have attention explain everything, and short prompts would seem to be free.
"""
MEMORY_ROWS = 5000.0
"""Decoded rows after which what was accepted of older ones has lost 63 % of its weight: 100 steps
of 50 streams. The mean of so many is off by 1 or 2 %, and follows the texts within seconds."""


LEAST_OF_PREDICTED = 0.5
"""Share of the predicted duration that a step weighs as at least. Where the scheduler stands still
once, one step is timed too long and the next one too short, since the device goes on: the short one
would weigh by the square of its error.
"""

MOST_FEATURES = 3
NEARLY = 1.0 - 1e-9
"""Share of a number from which on a sum that is rounded differently may be above it."""


class LinearCost:
    """y = c . x with c >= 0, from a stream of (x, y) that may drift.

    features: length of x, 2 or 3. memory: observations after which an old one has lost 63 % of
    its weight. leading: the feature that explains y while all observations look alike.
    least: share of the predicted y that an observation weighs as at least.
    """

    def __init__(
        self, features: int, memory: float, leading: int, least: float = LEAST_OF_PREDICTED
    ) -> None:
        self._least = least
        self._keep = 1.0 - 1.0 / memory
        # A trace of ridge keeps the factor regular while all steps look alike.
        self._features = features
        self._ridge = [1e-8] * features
        self._ridge[leading] = 1e-10
        # Plain numbers, for every step is told and arrays of three take ten times as long: the
        # upper half of the normal equations' matrix, row by row, and their right side.
        self._gram = (0.0,) * 6
        self._moment = (0.0,) * MOST_FEATURES
        self._solution: NDArray[np.float64] | None = None
        # Solved for, for as long as there is none: as an array, and as plain numbers.
        self._last: NDArray[np.float64] | None = None
        self._predicts: list[float] = []
        self.observations = 0

    def observe(self, x: Sequence[float], y: float, whole: float | None = None) -> None:
        """Take in one step: features `x`, duration `y` in seconds.

        whole: the duration that was measured, where `y` is what remains of it after other
        work was subtracted; else `y` itself. Ignored unless it is above 0.
        """
        whole = y if whole is None else whole
        if not (whole > 0.0 and math.isfinite(y)):
            return
        # Relative error is what matters, so that a 100 ms prefill does not outvote a
        # hundred 5 ms ones. A small remainder of a long step is as uncertain as the step.
        if self._last is not None:
            predicted = sum(map(mul, self._predicts, x))
            # What decides is rounded by numpy, whatever adds up sooner.
            if self._least * predicted > NEARLY * whole:
                whole = max(whole, self._least * float(self._last @ np.array(x)))
        keep, share = self._keep, y / whole
        a, b, c = x[0] / whole, x[1] / whole, x[2] / whole if len(x) == MOST_FEATURES else 0.0
        aa, ab, ac, bb, bc, cc = self._gram
        self._gram = (
            *(aa * keep + a * a, ab * keep + a * b, ac * keep + a * c),
            *(bb * keep + b * b, bc * keep + b * c, cc * keep + c * c),
        )
        first, second, third = self._moment
        self._moment = first * keep + a * share, second * keep + b * share, third * keep + c * share
        self._solution = None
        self.observations += 1

    def coefficients(self) -> NDArray[np.float64] | None:
        """The fitted c, or None before the first observation."""
        if self.observations == 0:
            return None
        if self._solution is None:
            count = self._features
            aa, ab, ac, bb, bc, cc = self._gram
            gram = ((aa, ab, ac), (ab, bb, bc), (ac, bc, cc))
            size = [math.sqrt(gram[i][i]) or 1.0 for i in range(count)]
            normal = np.array(
                [[gram[i][j] / (size[i] * size[j]) for j in range(count)] for i in range(count)]
            )
            for i, ridge in enumerate(self._ridge):
                normal[i, i] += ridge
            factor = np.linalg.cholesky(normal)
            scaled = np.array([self._moment[i] / size[i] for i in range(count)])
            target = np.linalg.solve(factor, scaled)
            self._solution = self._last = nnls(factor.T, target)[0] / np.array(size)
            self._predicts = self._solution.tolist()
        return self._solution


class AcceptedTokens:
    """Output tokens of a stream per decode step: 1, or with speculation what was accepted.

    most: tokens that a step can give a stream, drafts and the one that confirms them.
    """

    def __init__(self, most: int) -> None:
        self._most = float(most)
        self._tokens = 0.0
        self._rows = 0.0

    def observe(self, rows: int, tokens: int) -> None:
        """A decode step gave `tokens` to `rows` streams together."""
        if rows <= 0 or self._most == 1.0:
            return
        keep = math.exp(-rows / MEMORY_ROWS)
        self._tokens = self._tokens * keep + tokens
        self._rows = self._rows * keep + rows

    @property
    def per_step(self) -> float:
        """The mean, from 1 to `most`: a stream that ends within a step gets less of it."""
        if not self._rows:
            return 1.0
        return min(max(self._tokens / self._rows, 1.0), self._most)


class OnlineCosts:
    """The three cost models of one engine, learned while it runs.

    most: tokens that a decode step can give a stream; 1 without speculation.
    seen_rows: batch of the largest decode step so far.
    """

    def __init__(
        self, memory: float = 200.0, decode_memory: float = 2000.0, *, most: int = 1
    ) -> None:
        self._accepted = AcceptedTokens(most)
        # Decode steps are many and, while memory is full, all alike: forgetting the others
        # soon would leave nothing to tell the coefficients apart by.
        self._decode = LinearCost(3, decode_memory, leading=0)  # the weights are read
        self._prefill = LinearCost(3, memory, leading=1)
        self._memory = memory
        self._load = self._loads()
        self.seen_rows = 0

    def observe_decode(self, batch: int, kv_tokens: int, seconds: float) -> None:
        """One decode step of `batch` rows over `kv_tokens` tokens of context."""
        self._decode.observe((1.0, float(batch), float(kv_tokens)), seconds)
        self.seen_rows = max(self.seen_rows, batch)

    def observe_prefill(
        self, tokens: int, attention: float, seconds: float, whole: float | None = None
    ) -> None:
        """One prefill of `tokens` new tokens with `attention` work units.

        It took `seconds` of a step of `whole` seconds; by default it was the step.
        """
        mixed = tokens + MOST_ATTENTION * attention
        self._prefill.observe((1.0, float(tokens), float(mixed)), seconds, whole)

    def observe_load(self, tokens: int, seconds: float, whole: float | None = None) -> None:
        """A host-to-device load of `tokens` held up a step of `whole` seconds by `seconds`."""
        self._load.observe((1.0, float(tokens)), seconds, whole)

    def forget_loads(self) -> None:
        """What loads cost is unknown again."""
        if self._load.observations:
            self._load = self._loads()

    def _loads(self) -> LinearCost:
        # A step says at most how long its load took: what is short is believed at once.
        return LinearCost(2, self._memory, leading=1, least=0.0)

    @property
    def tokens_per_step(self) -> float:
        """Output tokens of a stream per decode step, on average."""
        return self._accepted.per_step

    def observe_tokens(self, rows: int, tokens: int) -> None:
        """A decode step gave `tokens` output tokens to `rows` streams together."""
        self._accepted.observe(rows, tokens)

    def snapshot(self) -> StepCosts:
        """The costs as learned so far."""
        load = self._load.coefficients()
        return StepCosts(
            decode=_triple(self._decode),
            prefill=self._prefill_costs(),
            load=None if load is None else (float(load[0]), float(load[1])),
            tokens_per_step=self.tokens_per_step,
            seen_rows=float(self.seen_rows or math.inf),
        )

    def _prefill_costs(self) -> Coefficients | None:
        fitted = _triple(self._prefill)
        if fitted is None:
            return None
        constant, tokens, mixed = fitted
        return constant, tokens + mixed, MOST_ATTENTION * mixed


def _triple(model: LinearCost) -> Coefficients | None:
    solution = model.coefficients()
    if solution is None:
        return None
    return float(solution[0]), float(solution[1]), float(solution[2])
