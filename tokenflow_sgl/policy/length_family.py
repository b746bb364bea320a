"""The order of magnitude of answers' lengths: log-normals, and how likely evidence makes each.

Answers are taken to be log-normal around a median of which nothing is known but that it lies
between one token and what clients allow; every order of magnitude is as likely as another, and so
is each of a few spreads.

Some answers end early for reasons of their own: a refusal, a question back, a call of a tool. Of
a log-normal alone, one answer of 100 tokens among hundreds of 4,000 is evidence for a wide spread,
and then for answers under way that become far longer than any that has been seen. So a share of the
answers, of which only a few sizes are considered, may be shorter than the median at will: each
order of magnitude below it is as likely as another (Huber's contamination, "Robust Estimation of a
Location Parameter", 1964, from one side).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from scipy.special import log_ndtr

from tokenflow_sgl.contract import FloatArray, IntArray
from tokenflow_sgl.contract.lengths import GRID, LONGEST, cell_of

SPREADS = (0.25, 0.5, 0.8, 1.2, 1.8)
"""Standard deviations of the logarithm that an answer's length may have."""
EARLY = (0.0, 0.01, 0.03, 0.1)
"""Shares of the answers that may end early, anywhere below the median."""
PER_OCTAVE = 3
"""Medians that are considered, per doubling."""


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """The m curves: a log-normal and a share of early ends each.

    The logarithms are not cut off. If they were, a curve by which hardly any answer gets so far
    would say of one that did that it goes on for certain, and ends for certain, too.

    Attributes:
        log_median: Logarithm of each one's median, shape (m,).
        survival: At each point of `GRID`, shape (m, g).
        log_survival: Its logarithm.
        log_mass: Logarithm of the share of answers that end in each cell.
    """

    log_median: FloatArray
    survival: FloatArray
    log_survival: FloatArray
    log_mass: FloatArray

    def log_likelihood(self, ended: FloatArray, cut: FloatArray) -> FloatArray:
        """Logarithm of how likely each curve makes such evidence, shape (m,).

        Args:
            ended: Answers per cell of `GRID` that ended there, shape (g,).
            cut: Answers that had come so far.
        """
        # Not by BLAS, whose rounding depends on its threads: all ranks must choose the same curve.
        likely: FloatArray = np.einsum("mg,g->m", self.log_mass, ended)
        likely += self.of_cut(cut)
        return likely

    def of_cut(self, cut: FloatArray) -> FloatArray:
        """Log-likelihood of each curve where no answer has ended, of shape (m,)."""
        # Streams under way are in few cells of the grid.
        cells = np.flatnonzero(cut)
        return np.asarray(np.einsum("mg,g->m", self.log_survival[:, cells], cut[cells]))

    def of_one(self, cell: int, *, cut_off: bool) -> FloatArray:
        """Log-likelihood of each curve, of a single answer that ended or was cut off in a cell."""
        return np.asarray((self.log_survival if cut_off else self.log_mass)[:, cell])

    def allowed(self, log_limit: float) -> FloatArray:
        """Before any evidence all are alike, unless clients allow less than the median: 0 or -inf.

        log_limit: Logarithm of what clients allow; NaN: not known. Shape (m,).
        """
        if math.isnan(log_limit):
            return np.zeros(len(self.log_median))
        return np.where(self.log_median <= log_limit + 1e-9, 0.0, -np.inf)


def lost(survival: FloatArray) -> FloatArray:
    """Share of the answers that end in each cell of `GRID`, which is the last axis."""
    share: FloatArray = survival.copy()
    share[..., :-1] -= survival[..., 1:]
    return share


@cache
def family() -> Family:
    """All curves of lengths that are considered."""
    octaves = math.log2(LONGEST)
    log_medians = np.linspace(0.0, math.log(LONGEST), round(PER_OCTAVE * octaves) + 1)
    grid = np.meshgrid(log_medians, SPREADS, EARLY, indexing="ij")
    log_median, spread, share = (column.reshape(-1, 1) for column in grid)
    above = (np.log(np.maximum(GRID, 1e-9)) - log_median) / spread
    log_longer, log_shorter = log_ndtr(-above), log_ndtr(above)
    # Of two shares that are both close to 1 the difference is lost: there, that of the others.
    ends = np.where(
        above[:, :-1] > 0.0,
        _log_difference(log_longer[:, :-1], log_longer[:, 1:]),
        _log_difference(log_shorter[:, 1:], log_shorter[:, :-1]),
    )
    ends = np.concatenate([ends, log_longer[:, -1:]], axis=1)
    # Where the median is one token nothing is shorter than it.
    log_length = np.log(np.maximum(GRID, 1.0))
    early = np.clip(1.0 - log_length / np.maximum(log_median, 1e-9), 0.0, 1.0)
    with np.errstate(divide="ignore"):  # of no share
        log_early, log_ends_early = np.log(share * early), np.log(share * lost(early))
    log_survival = np.logaddexp(np.log1p(-share) + log_longer, log_early)
    log_mass = np.logaddexp(np.log1p(-share) + ends, log_ends_early)
    return Family(log_median[:, 0], np.exp(log_survival), log_survival, log_mass)


def _log_difference(larger: FloatArray, smaller: FloatArray) -> FloatArray:
    """Logarithm of a difference, of the logarithms."""
    with np.errstate(divide="ignore"):  # where both are 1 to the last digit
        return np.asarray(larger + np.log(-np.expm1(smaller - larger)))


def magnitude(log_likelihood: FloatArray, log_limit: float, *cautions: float) -> list[FloatArray]:
    """Survivals that are typical in the light of the evidence, then careful; each of shape (g,).

    Args:
        log_likelihood: See `Family.log_likelihood`.
        log_limit: Logarithm of what clients allow; NaN: not known.
        cautions: Probabilities with which the mean length is at most that of one; one each.
    """
    likely = log_likelihood + family().allowed(log_limit)
    likely = np.exp(likely - likely.max())
    likely /= likely.sum()
    order = by_mean(len(GRID) - 1 if math.isnan(log_limit) else _cell(log_limit))
    chosen = np.searchsorted(np.cumsum(likely[order]), cautions)
    survival = family().survival
    careful = survival[order[np.minimum(chosen, len(order) - 1)]]
    return [np.einsum("m,mg->g", likely, survival), *careful]


def _cell(log_limit: float) -> int:
    return int(cell_of(np.array([min(round(math.exp(log_limit)), LONGEST)]))[0])


@lru_cache(maxsize=64)
def by_mean(cell: int) -> IntArray:
    """The curves in ascending order of their means, if no answer gets beyond this cell of `GRID`.

    What clients do not allow makes no difference: of two curves the one with more answers that are
    cut off there may have the smaller mean.
    """
    area = family().survival[:, :cell] * np.diff(GRID)[:cell]
    return np.argsort(area.sum(axis=1), kind="stable")
