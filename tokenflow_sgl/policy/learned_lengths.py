"""How long answers get, learned online from those that have ended and those that are under way.

No server is told when an answer will end: clients send a limit. What can be known is a
distribution. It is learned in two layers.

The lower layer asks for the order of magnitude. Answers are taken to be log-normal around a median
of which nothing is known but that it lies between one token and what clients allow; every order of
magnitude is as likely as another. A share of them may end early (`length_family`). Ended answers,
and those under way, which will be longer than they are now, say which medians, spreads and shares
remain likely. What is unknown then is common to all streams and does not average out over them. So
there are two curves: the mean over all that is likely, and a careful one, whose mean is exceeded
with a probability of 1 - `caution` only. Before any answer has ended, the careful one expects long
answers; after a few dozen both are close to the truth, for answers of 28 tokens as for 4,000. A
third one, the worst, has its mean exceeded with a probability of 1 - `WORST` only, while that is
another one.

The upper layer needs no such form: Kaplan and Meier's curve ("Nonparametric estimation from
incomplete observations", 1958), to which the lower layer contributes as `WEIGHT` answers would
(Susarla and Van Ryzin, "Nonparametric Bayesian estimation of survival curves from incomplete
observations", 1976). Answers that were cut off, by limit or by client, say only that they would
have been longer. Older answers count for less, so that the curves follow a change. Where those
under way show one earlier, the careful curve heeds it (`length_changes`): it is at least as long as
what came since then says. Answers that begin with thinking are left out of that: of two streams
that have come as far, the one whose thinking has ended has less to go, and they are served in
different orders. So how far streams have come depends on how far they have to go, and the test
would take that for a change.

Requests of one kind (thinking or not, rate class, size of the prompt) have curves of their own,
to which those of all requests contribute as `KIND_WEIGHT` answers would: where many of a kind have
ended their own evidence counts, else that of all.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tokenflow_sgl.contract import BoolArray, FloatArray, IntArray
from tokenflow_sgl.contract.lengths import GRID, LengthCurves, Lengths, Traits, cell_of
from tokenflow_sgl.policy.length_changes import LengthChange, LengthChanges
from tokenflow_sgl.policy.length_family import family, lost, magnitude

WEIGHT = 16.0
"""Answers that the lower layer counts as in the curves of all requests."""
KIND_WEIGHT = 64.0
"""Answers that those of all requests count as in the curves of a kind."""
HALF_LIFE = 256
"""Answers after which an older one counts half."""
FADES = 0.5 ** (1.0 / HALF_LIFE)
"""What each answer still counts after another one has ended."""
CHANGE = 1.0 / HALF_LIFE
"""Probability before any evidence that answers have changed: once among those that count."""
CAUTION = 0.85
"""Default probability with which the mean length is at most the careful one's."""
WORST = 0.98
"""The same probability of the worst one."""
REFRESHED = 8
"""Passes after which the streams under way are looked at again, though none has ended, and after
which a change is looked for again: a stream gets a token in each of them."""
LEAP = math.log(2.0)
"""Rise of what clients allow, as a logarithm, at which the curves are learned anew at once."""
KINDS = 64
"""Most kinds that are told apart; what comes later counts as any request."""
BUCKETS = (256, 1024, 4096, 16384)
"""Prompt lengths between which requests are of one kind."""


Kind = tuple[bool, str, int]
"""What tells requests apart: thinking, name of the rate class, place of the prompt in `BUCKETS`."""


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """What has been learned, for another `LearnedLengths` to go on from.

    Attributes:
        log_limit: Logarithm of what clients allow; NaN: not known.
        kinds: Those told apart, at most `KINDS`.
        ended: Answers per cell of `GRID` that ended there, older ones counting less: a row for all
            requests, then one for each kind; shape (1 + len(kinds), g).
        cut: Of those that were cut off.
    """

    log_limit: float
    kinds: tuple[Kind, ...]
    ended: FloatArray
    cut: FloatArray

    def of_most(self, most: int) -> Evidence:
        """With so many kinds at most: those of which most is known."""
        if len(self.kinds) <= most:
            return self
        known = (self.ended + self.cut)[1:].sum(axis=1)
        kept = np.sort(np.argsort(-known, kind="stable")[:most])
        rows = np.concatenate([[0], kept + 1])
        kinds = tuple(self.kinds[number] for number in kept.tolist())
        return Evidence(self.log_limit, kinds, self.ended[rows], self.cut[rows])


class LearnedLengths:
    """The predictor of this module.

    Args:
        caution: Probability with which the mean length is at most what the careful curve expects.
        evidence: What another one has learned; None: nothing.

    Attributes:
        answers: How many have ended, not counting those of `evidence`.
    """

    def __init__(self, caution: float = CAUTION, evidence: Evidence | None = None) -> None:
        self.answers = 0
        self._caution = caution
        if evidence is None:
            none = np.zeros((1, len(GRID)))
            evidence = Evidence(math.nan, (), none, none)
        # Kinds of long ago must not take the place of those to come.
        evidence = evidence.of_most(KINDS // 2)
        self._kinds = {kind: number for number, kind in enumerate(evidence.kinds, start=1)}
        # A row for all requests, then one for each kind.
        self._ended, self._cut = evidence.ended.copy(), evidence.cut.copy()
        # How likely each curve makes all of these.
        self._likely = family().log_likelihood(self._ended[0], self._cut[0])
        # Which rows are of kinds that think, and the same of all answers of the others.
        self._thinks = np.array([False, *(thinking for thinking, *_ in evidence.kinds)])
        self._likely_others = self._likely
        if self._thinks.any():
            others = (rows[1:][~self._thinks[1:]].sum(axis=0) for rows in (self._ended, self._cut))
            self._likely_others = family().log_likelihood(*others)
        self._changes = LengthChanges(len(self._ended), CHANGE)
        self._log_limit = evidence.log_limit
        # As of the last pass that asked or passed by; not worked out before it is asked for.
        self._known: LearnedCurves | None = None
        self._passes = 0
        self._unlooked = REFRESHED

    def evidence(self) -> Evidence:
        """What has been learned by now."""
        return Evidence(self._log_limit, tuple(self._kinds), self._ended.copy(), self._cut.copy())

    def kind(self, traits: Traits) -> int:
        """Number of the request's kind; 0 where too many are told apart already."""
        log_limit = math.log(max(traits.limit, 2))
        # Up at once, down slowly: the longest that clients allow these days.
        lower = self._log_limit + (log_limit - self._log_limit) / HALF_LIFE
        if log_limit > self._log_limit + LEAP:
            self._known = None  # the curves end where clients used to: all would seem short
        self._log_limit = max(log_limit, lower) if self._log_limit > 0.0 else log_limit
        key = traits.thinking, traits.qos_class, bisect_left(BUCKETS, traits.prompt)
        if key not in self._kinds and len(self._kinds) < KINDS:
            self._kinds[key] = len(self._kinds) + 1
            row = np.zeros((1, len(GRID)))
            self._ended = np.concatenate([self._ended, row])
            self._cut = np.concatenate([self._cut, row])
            self._thinks = np.append(self._thinks, traits.thinking)
            self._changes.add_kind()
            self._known = None
        return self._kinds.get(key, 0)

    def ended(self, kind: int, length: int, *, cut_off: bool) -> None:
        """Count the answer for its kind and for all."""
        self.answers += 1
        cell = int(cell_of(np.array([length]))[0])
        counted = self._cut if cut_off else self._ended
        for row in {0, kind}:
            for counts in (self._ended[row], self._cut[row]):
                counts *= FADES
            counted[row, cell] += 1.0
        one = family().of_one(cell, cut_off=cut_off)
        self._likely = FADES * self._likely + one
        if not self._thinks[kind]:
            self._likely_others = FADES * self._likely_others + one
            self._changes.count(kind, cell, FADES, cut_off=cut_off)
        self._known = None

    def lengths(self, kind: IntArray, generated: IntArray) -> Lengths:
        """The curves as of the last answer that ended, or of a few passes ago."""
        self._passes += 1
        self._unlooked += 1
        if self._known is None or self._passes >= REFRESHED:
            self._known = self._learn(kind, generated)
            self._passes = 0
        return self._known

    def _learn(self, kind: IntArray, generated: IntArray) -> LearnedCurves:
        live = generated > 0
        rows, size = self._ended.shape
        place = kind[live] * size + cell_of(generated[live])
        counted = np.bincount(place, minlength=rows * size).reshape(rows, size)
        under_way = counted.astype(np.float64)
        others, thinking = under_way, bool(self._thinks.any())
        if thinking:
            others = np.where(self._thinks[:, None], 0.0, under_way)
            others[0] = others.sum(axis=0)
        under_way[0] = under_way.sum(axis=0)
        going_on = family().of_cut(under_way[0])
        learned = LearnedCurves(
            self._ended.copy(),
            self._cut + under_way,
            self._likely + going_on,
            self._log_limit,
            self._caution,
            self._thinks,
        )
        if self._unlooked >= REFRESHED:
            likely = self._likely_others + (family().of_cut(others[0]) if thinking else going_on)
            curve = self._of_others(learned.typical.survival)
            self._changes.look(likely, family().allowed(self._log_limit), curve, others[0])
            self._unlooked = 0
        change = self._changes.found()
        if change is not None and change.probability > 1.0 - self._caution:
            learned.heed(change, others)
        return learned

    def _of_others(self, curves: FloatArray) -> FloatArray:
        """The curve of all answers without those that think; `curves`: one per row."""
        weight = np.where(self._thinks, 0.0, (self._ended + self._cut).sum(axis=1))[1:]
        if not self._thinks.any() or not weight.any():
            return np.asarray(curves[0])
        # Not by BLAS, see `Family`.
        return np.asarray(np.einsum("k,kg->g", weight, curves[1:]) / weight.sum())


class LearnedCurves(Lengths):
    """What is known in one pass: the curves that follow from it are found once they are asked for.

    Args:
        ended: Answers per cell that ended there: see `Evidence`.
        gone: Those that were cut off, and those under way.
        likely: Logarithm of how likely each curve makes all of these, shape (m,).
        log_limit: Logarithm of what clients allow.
        caution: Of the careful curve.
        thinks: Which rows are of kinds that think.
    """

    _ended: FloatArray
    _gone: FloatArray
    _evidence: tuple[FloatArray, float, float]
    _thinks: BoolArray
    _change: tuple[LengthChange, FloatArray] | None

    def __init__(
        self,
        ended: FloatArray,
        gone: FloatArray,
        likely: FloatArray,
        log_limit: float,
        caution: float,
        thinks: BoolArray,
    ) -> None:
        evidence = likely, log_limit, caution
        self.__dict__.update(_ended=ended, _gone=gone, _evidence=evidence, _thinks=thinks)
        self.__dict__["_change"] = None

    def heed(self, change: LengthChange, under_way: FloatArray) -> None:
        """Answers have probably changed: the careful curve is as long as what came since says.

        under_way: Those that do not think, per row and cell.
        """
        self.__dict__["_change"] = change, under_way

    @cached_property
    def _bases(self) -> list[FloatArray]:
        likely, log_limit, caution = self._evidence
        return magnitude(likely, log_limit, caution, WORST)

    @cached_property
    def _present(self) -> FloatArray:
        return _present(self._ended, self._gone)

    @cached_property
    def typical(self) -> LengthCurves:
        """The best guess, for whatever concerns one stream."""
        return LengthCurves(_curves(self._bases[0], self._ended, self._present))

    @cached_property
    def careful(self) -> LengthCurves:
        """With what is unknown about all answers together counted as long ones."""
        careful = _curves(self._bases[1], self._ended, self._present)
        if self._change is not None:
            change, others = self._change
            _, log_limit, caution = self._evidence
            going_on = family().of_cut(others[0])
            # With the caution asked for, if there was no change they are as before.
            caution = 1.0 - (1.0 - caution) / change.probability
            _, base = magnitude(change.likely + going_on, log_limit, caution)
            # Shorter ones are believed when they have ended.
            present = _present(change.ended, change.cut + others)
            longer = np.maximum(careful, _curves(base, change.ended, present))
            careful = np.where(self._thinks[:, None], careful, longer)
        return LengthCurves(careful)

    @cached_property
    def worst(self) -> LengthCurves | None:
        """Likewise, with nearly all of it; None: that makes no difference."""
        bases, (*_, caution) = self._bases, self._evidence
        if caution >= WORST or np.array_equal(bases[1], bases[2]):
            return None
        worst = _curves(bases[2], self._ended, self._present)
        return LengthCurves(np.maximum(self.careful.survival, worst))


def _present(ended: FloatArray, cut: FloatArray) -> FloatArray:
    """Answers at risk of ending in each cell; those cut off in it do not count. Shape (c, g)."""
    return np.asarray(np.cumsum((ended + cut)[:, ::-1], axis=1)[:, ::-1] - cut)


def _curves(base: FloatArray, ended: FloatArray, present: FloatArray) -> FloatArray:
    """Curves of all requests and of each kind; `base`: what the lower layer says."""
    for_all = _survival(base, WEIGHT, ended[:1], present[:1])
    own = _survival(for_all, KIND_WEIGHT, ended[1:], present[1:])
    return np.concatenate([for_all, own])


def _survival(
    base: FloatArray, weight: float, ended: FloatArray, present: FloatArray
) -> FloatArray:
    """Kaplan and Meier's curves of the rows of `ended`, with `weight` answers of `base`.

    All of shape (c, g), `base` of (g,) or (1, g). present: see `_present`.
    """
    hazard = (weight * lost(base) + ended) / np.maximum(weight * base + present, 1e-12)
    survival = np.ones_like(ended)
    survival[:, 1:] = np.cumprod(1.0 - np.clip(hazard, 0.0, 1.0), axis=1)[:, :-1]
    return survival
