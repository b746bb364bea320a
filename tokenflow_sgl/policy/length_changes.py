"""Whether answers have changed: a test of what was learned against the streams under way.

What was learned from answers that have ended misleads when those to come are longer: a server that
has seen only short ones takes 35 tokens for certain, and nothing tells it otherwise until the first
long ones end. The streams under way tell it sooner. One that gets from 35 to 70 tokens where hardly
any did is evidence, and so is each token that a stream gets.

Two explanations compete for the evidence since some moment: it follows the same curve as that
before (see `length_family`), or another, of which nothing is known. Both likelihoods are averaged
over the whole family; their ratio is Bayes' factor. Answers of two sizes are not log-normal, and
those under way between them would look like a change all the time. So the first explanation has a
second chance: the curves that were learned (`learned_lengths`), each asked for what came until the
next look, if they make it likelier (Dawid, "The Prequential Approach", 1984).

Several moments are kept, close together in the present and further apart in the past, and each may
be that of the change, before any evidence in proportion to the answers that began until the next
one: Adams and MacKay ("Bayesian online changepoint detection", 2007). Of a stream that was under
way at a moment only what it got since then is evidence, so that long answers, which are under way
for longer, are no sign of a change.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenflow_sgl.contract import FloatArray
from tokenflow_sgl.contract.lengths import GRID
from tokenflow_sgl.policy.length_family import family, lost

MOMENTS = 12
"""Moments that are kept: each about twice as many answers ago as the next one."""
LEAST = 1e-26
"""Share of answers below which one is not told apart from none, of a curve that was learned."""
MOST = 600.0
"""Largest logarithm of a factor: more is as good as certain."""
LOST = -45.0
"""Logarithm of a share, of the largest one, that a sum does not notice."""


@dataclass(frozen=True, slots=True, eq=False)
class LengthChange:
    """What speaks for a change.

    Attributes:
        probability: That answers have changed at one of the moments, as of the last look.
        likely: Logarithm of how likely each curve makes what has ended since the likeliest of
            them, shape (m,).
        ended, cut: Answers per cell of `GRID` that ended there since then, and that were cut off,
            shape (rows, g).
    """

    probability: float
    likely: FloatArray
    ended: FloatArray
    cut: FloatArray


@dataclass(slots=True, eq=False)
class _Moment:
    """What was known at some moment.

    Attributes:
        begun: Answers that had begun, at least one more than at the moment before.
        weight: What an answer of before it counts by now.
        before: Logarithm of how likely each curve makes all that was known, shape (m,).
        over: The same of those that had ended, old ones counting in full.
        came: And with those under way.
        ended, cut: Answers that had ended and that had been cut off, as counted there.
        learned: See `LengthChanges._learned`.
    """

    begun: int
    weight: float
    before: FloatArray
    over: FloatArray
    came: FloatArray
    ended: FloatArray
    cut: FloatArray
    learned: float


class LengthChanges:
    """Looks for changes of all answers; row 0 is all of them, the others are kinds of them.

    Args:
        rows: How many there are.
        likely: Probability of a change at one of the moments before any evidence.
    """

    def __init__(self, rows: int, likely: float) -> None:
        self._odds = likely / (1.0 - likely)
        self._moments: list[_Moment] = []
        self._likeliest: _Moment | None = None
        self._probability = 0.0
        # Of old answers as of new ones; how likely each curve makes them all.
        self._ended = np.zeros((rows, len(GRID)))
        self._cut = np.zeros((rows, len(GRID)))
        self._over = np.zeros(len(family().log_median))
        # Logarithm of how likely the curves that were learned, each until the next look, made all
        # that was seen there; the last of them, and what had been seen.
        self._learned = 0.0
        self._curve = np.zeros((2, len(GRID)))
        self._seen = np.zeros((2, len(GRID)))

    def add_kind(self) -> None:
        """Add a row for one more kind of answers."""
        row = np.zeros((1, len(GRID)))
        self._ended, self._cut = (np.concatenate([each, row]) for each in (self._ended, self._cut))
        for moment in self._moments:
            moment.ended, moment.cut = (
                np.concatenate([each, row]) for each in (moment.ended, moment.cut)
            )

    def count(self, kind: int, cell: int, share: float, *, cut_off: bool) -> None:
        """An answer has ended in a cell of `GRID`; earlier ones count `share` of what they did."""
        self._over = self._over + family().of_one(cell, cut_off=cut_off)
        for row in {0, kind}:
            (self._cut if cut_off else self._ended)[row, cell] += 1.0
        for moment in self._moments:
            moment.weight *= share

    def look(
        self, known: FloatArray, shares: FloatArray, curve: FloatArray, under_way: FloatArray
    ) -> None:
        """Weigh all evidence anew; the present becomes one more moment.

        Args:
            known: Logarithm of how likely each curve makes all that is known of all answers,
                those under way included, shape (m,).
            shares: Logarithm of each one's share before any evidence.
            curve: Survival of all answers, as learned, shape (g,).
            under_way: Streams that have come so far, per cell of `GRID`, shape (g,).
        """
        came = self._over + family().of_cut(under_way)
        seen = np.stack([self._ended[0], self._cut[0] + under_way])
        self._learned += float((self._curve * (seen - self._seen)).sum())
        self._curve = np.log(np.maximum([lost(curve), curve], LEAST))
        self._seen = seen
        if self._moments:
            self.weigh(came, shares, under_way)
        begun = self._begun(under_way)
        if not self._moments or begun > self._moments[-1].begun:
            now = _Moment(
                begun=begun,
                weight=1.0,
                before=known,
                over=self._over,
                came=came,
                ended=self._ended.copy(),
                cut=self._cut.copy(),
                learned=self._learned,
            )
            self._moments.append(now)
            self._thin(begun)

    def found(self) -> LengthChange | None:
        """What spoke for a change at the last look; what has ended is counted until now."""
        best = self._likeliest
        if best is None:
            return None
        return LengthChange(
            self._probability,
            self._over - best.over,
            self._ended - best.ended,
            self._cut - best.cut,
        )

    def _thin(self, begun: int) -> None:
        """If there are too many moments, one less where they are closest for their age."""
        if len(self._moments) <= MOMENTS:
            return
        then = np.array([each.begun for each in self._moments])
        gaps = (then[2:] - then[:-2]) / (begun + 1 - then[1:-1])
        # A change that was found goes on being one.
        gaps[[each is self._likeliest for each in self._moments[1:-1]]] = np.inf
        del self._moments[1 + int(np.argmin(gaps))]

    def weigh(self, came: FloatArray, shares: FloatArray, under_way: FloatArray) -> None:
        """Find the likeliest moment, and how probable it is that there was a change at all.

        came: Logarithm of how likely each curve makes what all answers together have got.
        """
        moments = self._moments
        begun = [each.begun for each in moments]
        begins = np.maximum(np.diff([*begun, self._begun(under_way)]), 0)
        weight = np.array([each.weight for each in moments])
        before = weight[:, None] * np.stack([each.before for each in moments]) + shares
        since = came - np.stack([each.came for each in moments])
        learned = self._learned - np.array([each.learned for each in moments])
        same = np.maximum(_averaged(before + since) - _averaged(before), learned)
        factor = _averaged(since + shares) - _averaged(shares) - same
        share = weight * begins / max(int(begins.sum()), 1)
        odds = np.exp(np.minimum(factor, MOST)) * share * self._odds
        self._likeliest = moments[int(np.argmax(odds))]
        self._probability = 1.0 - 1.0 / (1.0 + float(odds.sum()))

    def _begun(self, under_way: FloatArray) -> int:
        """Number of answers that have begun so far."""
        return int(self._ended[0].sum() + self._cut[0].sum() + under_way.sum())


def _averaged(log_likelihood: FloatArray) -> FloatArray:
    """Logarithm of the sum of exponentials over the last axis."""
    most = log_likelihood.max(axis=-1, keepdims=True)
    less = log_likelihood - most
    # The others are lost in rounding, and there are many.
    shares = np.exp(less, where=less > LOST, out=np.zeros_like(less))
    return np.asarray(most[..., 0] + np.log(shares.sum(axis=-1)))
