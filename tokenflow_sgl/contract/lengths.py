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
_CELL: NDArray[np.int64] = np.searchsorted(GRID, np.arange(LONGEST + 1), side="right") - 1


def cell_of(tokens: IntArray | FloatArray) -> IntArray:
    """The cell of `GRID` in which each length lies: GRID[cell] <= length."""
    whole = np.minimum(tokens, LONGEST).astype(np.int64)
    return np.asarray(_CELL.take(whole))


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
        width = np.diff(GRID)
        grid = GRID.astype(np.float64)
        area = np.zeros_like(survival)
        area[:, 1:] = np.cumsum(survival[:, :-1] * width, axis=1)
        moment = np.zeros_like(survival)
        moment[:, 1:] = np.cumsum(survival[:, :-1] * np.diff(grid * grid / 2.0), axis=1)
        area -= survival * grid
        moment -= survival * (grid * grid / 2.0)
        return survival.ravel(), area.ravel(), moment.ravel()

    def left(self, curve: IntArray, generated: IntArray, limit: IntArray) -> FloatArray:
        """Expected tokens still to come, at least 1, shape (n,).

        Args:
            curve: Index of each answer's survival, shape (n,).
            generated: Tokens of it so far.
            limit: Tokens that it may have.
        """
        survival, area, _ = self._flat
        offset = curve * len(GRID)
        now = cell_of(generated) + offset
        end = cell_of(limit) + offset
        alive = survival.take(now)
        there = area.take(now) + alive * generated
        whole = area.take(end) + survival.take(end) * np.minimum(limit, LONGEST)
        return np.asarray(np.maximum((whole - there) / alive, 1.0))

    def variance(self, curve: IntArray, generated: IntArray, limit: IntArray) -> FloatArray:
        """Variance of the tokens still to come, shape (n,); arguments as of `left`."""
        survival, area, moment = self._flat
        offset = curve * len(GRID)
        now = cell_of(generated) + offset
        end = cell_of(limit) + offset
        most = np.minimum(limit, LONGEST).astype(np.float64)
        alive, last = survival.take(now), survival.take(end)
        begun = generated.astype(np.float64)
        first = area.take(end) + last * most - area.take(now) - alive * begun
        second = moment.take(end) + last * most * most / 2.0
        second -= moment.take(now) + alive * begun * begun / 2.0
        mean = first / alive
        return np.asarray(np.maximum(2.0 * (second - begun * first) / alive - mean * mean, 0.0))

    def work(
        self,
        curve: IntArray,
        generated: IntArray,
        limit: IntArray,
        context: IntArray,
        tokens: FloatArray,
    ) -> FloatArray:
        """Expected context that is read while so many more tokens are decoded, if they come.

        The sum, over those of the next `tokens` that the answer has, of the context that each
        reads.

        Args:
            curve: Index of each answer's survival, shape (n,).
            generated: Tokens of it so far.
            limit: Tokens that it may have.
            context: Prompt and output so far, shape (n,).
            tokens: How many, shape (h, n).

        Returns:
            Tokens read, shape (h, n).
        """
        survival, area, moment = self._flat
        offset = curve * len(GRID)
        now = cell_of(generated) + offset
        alive = survival.take(now)
        begun = generated.astype(np.float64)
        end = np.minimum(generated + tokens, limit)
        cells = cell_of(end)
        cells += offset
        here = survival.take(cells)
        first = area.take(cells)
        first += here * end
        first -= area.take(now) + alive * begun
        here *= end
        here *= end
        here *= 0.5
        here += moment.take(cells)
        here -= moment.take(now) + alive * begun * begun * 0.5
        first *= context - begun
        here += first
        here /= alive
        return np.asarray(here)


@dataclass(frozen=True, slots=True)
class Lengths:
    """What is known of how long answers get.

    Attributes:
        typical: The best guess, for whatever concerns one stream.
        careful: With what is unknown about all answers together counted as long ones, for what is
            promised to all of them; it does not average out over the streams.
    """

    typical: LengthCurves
    careful: LengthCurves

    def repeated(self, kinds: int) -> Lengths:
        """The first kind's curves, for so many kinds."""
        pair = (
            LengthCurves(np.repeat(curves.survival[:1], kinds, axis=0))
            for curves in (self.typical, self.careful)
        )
        return Lengths(*pair)


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
