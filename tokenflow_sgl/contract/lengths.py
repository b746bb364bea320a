"""How long answers get, as distributions: what is known of an end that no server is told.

A distribution is given by its survival S(u), the share of answers that are longer than u tokens.
Of an answer that has come to g tokens and may have at most `limit`, each further token u is there
with probability S(u) / S(g). All expectations below are integrals over that:

    H(y) = integral of S(u) du from 0 to y,    K(y) = integral of u S(u) du from 0 to y.

Between the points of a grid S is constant, so both are exact for the grid's distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

LONGEST = 1 << 17
"""Tokens beyond which no grid goes; a longer answer counts as one that goes on."""
LEAST = 1e-6
"""Share of answers below which a survival is not told apart from none."""


_STEPS = np.geomspace(32, LONGEST, int(np.log(LONGEST / 32) / np.log(1.03)))
GRID: IntArray = np.unique(np.concatenate([np.arange(32), np.rint(_STEPS)]).astype(np.int64))
"""The grid of every `LengthCurves`, shape (g,): 0 to 31, then in steps of three per cent."""
_POINTS: FloatArray = GRID.astype(np.float64)
_HALF_SQUARES: FloatArray = _POINTS * _POINTS / 2.0
_CELL: NDArray[np.int64] = np.searchsorted(GRID, np.arange(LONGEST + 1), side="right") - 1


def cell_of(tokens: IntArray | FloatArray) -> IntArray:
    """The cell of `GRID` in which each length lies: GRID[cell] <= length."""
    return np.asarray(_CELL.take(tokens.astype(np.int64, copy=False), mode="clip"))


@dataclass(frozen=True)
class LengthCurves:
    """Survivals of several kinds of answers.

    Attributes:
        survival: S at each point of `GRID` and up to the next, shape (c, len(GRID)); starts at 1,
            does not increase.
    """

    survival: FloatArray

    @classmethod
    def certain(cls) -> LengthCurves:
        """One curve: every answer goes on until its limit."""
        return cls(np.ones((1, len(GRID))))

    def check(self, kinds: int) -> None:
        """Raise `ValueError` unless these are survivals, of so many kinds at least."""
        shape = self.survival.shape
        if len(shape) != 2 or shape[0] < kinds or shape[1] != len(GRID):
            raise ValueError(
                f"survival has the shape {shape}; allowed is ({kinds} or more, {len(GRID)})"
            )
        steps = np.diff(self.survival, axis=1)
        if not (self.survival[:, 0] == 1.0).all() or not (steps <= 0.0).all():
            raise ValueError("survival must start at 1 and not increase")
        if not (self.survival >= 0.0).all():
            raise ValueError("survival must not be negative")

    @cached_property
    def _flat(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """S, H - S u and K - S u u / 2 at the cells' beginnings, curve after curve."""
        survival = np.maximum(self.survival, LEAST)
        area = np.zeros_like(survival)
        area[:, 1:] = np.cumsum(survival[:, :-1] * np.diff(_POINTS), axis=1)
        moment = np.zeros_like(survival)
        moment[:, 1:] = np.cumsum(survival[:, :-1] * np.diff(_HALF_SQUARES), axis=1)
        area -= survival * _POINTS
        moment -= survival * _HALF_SQUARES
        return survival.ravel(), area.ravel(), moment.ravel()

    def remaining(self, curve: IntArray, generated: IntArray, limit: IntArray) -> Remaining:
        """What is left of some answers.

        Args:
            curve: Index of each answer's survival, shape (n,).
            generated: Tokens of it so far.
            limit: Tokens that it may have.
        """
        return Remaining(self, curve * len(GRID), generated, limit)

    def quantile_left(
        self, curve: IntArray, generated: IntArray, limit: IntArray, share: float
    ) -> FloatArray:
        """Tokens still to come, at least 1, that such a share of these answers do not exceed.

        Args:
            curve: Index of each answer's survival, shape (n,).
            generated: Tokens of it so far.
            limit: Tokens that it may have.
            share: From 0.0 to below 1.0.
        """
        whole = limit.astype(np.float64)
        for kind in np.unique(curve).tolist():
            survival, those = self.survival[kind], curve == kind
            goal = survival[cell_of(generated[those])] * (1.0 - share)
            end = np.searchsorted(-survival, -goal)
            reaches = np.append(_POINTS, np.inf)[end]
            whole[those] = np.minimum(whole[those], reaches)
        return np.asarray(np.maximum(whole - generated, 1.0))

    def left(self, curve: IntArray, generated: IntArray, limit: IntArray) -> FloatArray:
        """`Remaining.left` of these answers, see `remaining`."""
        return self.remaining(curve, generated, limit).left


class Remaining:
    """What is left of n answers: they share the look-ups of where they are on their curves.

    Args:
        curves: Theirs.
        offset: Where in the flat curves that of each answer begins, shape (n,).
        generated: Tokens of each so far.
        limit: Tokens that it may have.
    """

    def __init__(
        self, curves: LengthCurves, offset: IntArray, generated: IntArray, limit: IntArray
    ) -> None:
        self._survival, self._area, self._moment = curves._flat
        self._offset = offset
        self._limit = limit
        self._begun = generated.astype(np.float64)
        now = cell_of(generated) + offset
        self._now = now
        self._alive = self._survival.take(now)
        # H at the present, times S.
        self._there = self._area.take(now) + self._alive * self._begun

    @cached_property
    def _moment_there(self) -> FloatArray:
        """K at the present, times S."""
        begun = self._begun
        return self._moment.take(self._now) + self._alive * begun * begun * 0.5

    @cached_property
    def _end(self) -> IntArray:
        return cell_of(self._limit) + self._offset

    @cached_property
    def left(self) -> FloatArray:
        """Expected tokens still to come, at least 1, shape (n,)."""
        end = self._end
        whole = self._area.take(end) + self._survival.take(end) * np.minimum(self._limit, LONGEST)
        return np.asarray(np.maximum((whole - self._there) / self._alive, 1.0))

    @cached_property
    def variance(self) -> FloatArray:
        """Variance of the tokens still to come, shape (n,)."""
        end, alive, begun = self._end, self._alive, self._begun
        most = np.minimum(self._limit, LONGEST).astype(np.float64)
        last = self._survival.take(end)
        first = self._area.take(end) + last * most - self._area.take(self._now) - alive * begun
        second = self._moment.take(end) + last * most * most / 2.0
        second -= self._moment_there
        mean = first / alive
        return np.asarray(np.maximum(2.0 * (second - begun * first) / alive - mean * mean, 0.0))

    def alive(self, tokens: FloatArray) -> FloatArray:
        """Probability that each answer has more than so many further tokens, shape of `tokens`."""
        end = self._begun + tokens
        cells = cell_of(np.minimum(end, self._limit))
        cells += self._offset
        return np.asarray(
            np.where(end < self._limit, self._survival.take(cells), 0.0) / self._alive
        )

    def coming(self, tokens: FloatArray) -> FloatArray:
        """How many of so many further tokens each answer has, on average, shape of `tokens`."""
        end = np.minimum(self._begun + tokens, self._limit)
        cells = cell_of(end)
        cells += self._offset
        there = self._area.take(cells) + self._survival.take(cells) * end
        return np.asarray((there - self._there) / self._alive)

    def work(self, context: IntArray | FloatArray, tokens: FloatArray) -> FloatArray:
        """Expected context that is read while so many more tokens are decoded, if they come.

        The sum, over those of the next `tokens` that the answer has, of the context that each
        reads.

        Args:
            context: Prompt and output so far, shape (n,).
            tokens: How many, shape (n,) or (h, n).

        Returns:
            Tokens read, of the shape of `tokens`.
        """
        begun = self._begun
        end = np.minimum(begun + tokens, self._limit)
        cells = cell_of(end)
        cells += self._offset
        here = self._survival.take(cells)
        first = self._area.take(cells)
        first += here * end
        first -= self._there
        here *= end
        here *= end
        here *= 0.5
        here += self._moment.take(cells)
        here -= self._moment_there
        first *= context - begun
        here += first
        here /= self._alive
        return np.asarray(here)


@dataclass(frozen=True)
class Lengths:
    """What is known of how long answers get.

    Attributes:
        typical: The best guess, for whatever concerns one stream.
        careful: With what is unknown about all answers together counted as long ones, for what is
            promised to all of them; it does not average out over the streams.
        worst: Likewise, with nearly all of it; None: what is known makes no difference between
            the two.
    """

    typical: LengthCurves
    careful: LengthCurves
    worst: LengthCurves | None = None

    def repeated(self, kinds: int) -> Lengths:
        """The first kind's curves, for so many kinds."""

        def again(curves: LengthCurves) -> LengthCurves:
            return LengthCurves(np.repeat(curves.survival[:1], kinds, axis=0))

        worst = None if self.worst is None else again(self.worst)
        return Lengths(again(self.typical), again(self.careful), worst)


CERTAIN = Lengths(LengthCurves.certain(), LengthCurves.certain())
"""Every answer goes on until its limit."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a request when it comes, by which its answer's length can be guessed.

    Attributes:
        prompt: Its tokens.
        limit: Output tokens that the client allows.
        qos_class: Name of its rate class.
        thinking: Its answer begins with reasoning.
    """

    prompt: int
    limit: int
    qos_class: str = ""
    thinking: bool = False


class LengthPredictor(Protocol):
    """Learns how long answers get. Deterministic: all ranks must come to the same curves."""

    def kind(self, traits: Traits) -> int:
        """Which curve the answer to such a request follows, from 0."""
        ...

    def ended(self, kind: int, length: int, *, cut_off: bool) -> None:
        """An answer has ended after `length` tokens; `cut_off`: it would have been longer."""
        ...

    def lengths(self, kind: IntArray, generated: IntArray) -> Lengths:
        """The curves of all kinds, in the light of the streams that are here.

        Args:
            kind: Of each stream, shape (n,).
            generated: Output tokens of each so far.
        """
        ...
