"""Two or more runs of the same trace: ratios to the first, with bootstrap intervals.

Paired: the same requests are drawn from both runs, so that what a request *is* (its length, its
place in the burst) cancels out and only what became of it differs. Every figure, throughputs and
the makespan included, is worked out again from the drawn requests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tokenflow_sgl.lab.report.catalogue import CATALOGUE
from tokenflow_sgl.lab.report.figure_kind import Figure
from tokenflow_sgl.lab.report.report_options import Options, ReportError
from tokenflow_sgl.lab.report.run_figures import Figures
from tokenflow_sgl.lab.report.sample import Columns, Sample
from tokenflow_sgl.lab.runs.recording import FloatArray, IntArray

_BLOCK = 1_000_000
"""Drawn requests worked on at once, which bounds the memory."""


class Verdict(StrEnum):
    """What a comparison's interval says of a figure: better, worse, or neither."""

    better = "better"
    worse = "worse"
    unclear = "no clear difference"
    unknown = "not measured"


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of a run against the baseline.

    Attributes:
        figure: Which.
        baseline: Its value in the baseline.
        value: Its value in the run.
        ratio: value / baseline; NaN unless the baseline is > 0.
        ratio_low: Lower end of the ratio's interval; NaN where a drawn baseline was not > 0.
        ratio_high: Its upper end.
        difference_low: Lower end of the interval of value - baseline.
        difference_high: Its upper end.
        verdict: Of the ratio's interval (does it contain 1), or where there is none of the
            difference's (does it contain 0).
    """

    figure: Figure
    baseline: float
    value: float
    ratio: float
    ratio_low: float
    ratio_high: float
    difference_low: float
    difference_high: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Against:
    """One run against the baseline.

    Attributes:
        figures: The run.
        changes: One per figure of the catalogue, in its order.
        mismatch: Why the two did not serve the same trace, in a sentence; None: they did, and
            the resampling is paired.
    """

    figures: Figures
    changes: tuple[Change, ...]
    mismatch: str | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs against the first of them."""

    baseline: Figures
    others: tuple[Against, ...]

    @property
    def runs(self) -> tuple[Figures, ...]:
        """All runs, the baseline first."""
        return (self.baseline, *(other.figures for other in self.others))


def compare(
    baseline: Figures, others: Sequence[Figures], *, allow_different: bool = False
) -> Comparison:
    """Compare runs with a baseline.

    Args:
        baseline: The run that the others are divided by.
        others: At least one, made with the same options.
        allow_different: Compare runs of different traces too, unpaired.

    Raises:
        ReportError: Not the same trace or not the same options; no run or no request to compare.
    """
    if not others:
        raise ReportError("a comparison needs at least two runs, got one")
    results = []
    for other in others:
        if other.options != baseline.options:
            raise ReportError(
                f"{other.info.name} was worked out with other options than {baseline.info.name}"
            )
        mismatch = trace_mismatch(baseline, other)
        if mismatch and not allow_different:
            raise ReportError(
                f"{other.info.name} did not serve the same trace as {baseline.info.name}: "
                f"{mismatch}"
            )
        changes = _changes(baseline, other, baseline.options, paired=mismatch is None)
        results.append(Against(other, changes, mismatch))
    return Comparison(baseline, tuple(results))


def trace_mismatch(baseline: Figures, other: Figures) -> str | None:
    """Say in which way two runs did not serve the same requests; None: they did.

    Names of traces may differ; requests may not. When a later turn of a conversation is due
    depends on the answers before it, so only first turns must be due at the same time. Prompt
    lengths may be the server's count of what it was sent, answers before included: not compared.
    """
    one, two = baseline.judged.recording, other.judged.recording
    if len(one) != len(two) or not np.array_equal(one.index, two.index):
        return (
            f"{len(one)} requests against {len(two)}"
            if len(one) != len(two)
            else "its requests are others of the trace"
        )
    first_turn = one.turn == 0
    columns: dict[str, tuple[FloatArray | IntArray, FloatArray | IntArray]] = {
        "turn": (one.turn, two.turn),
        "requested_tokens": (one.requested_tokens, two.requested_tokens),
        "rate": (one.rate, two.rate),
        "ttft_slo_s": (one.ttft_slo, two.ttft_slo),
        "tbt_slo_s": (one.tbt_slo, two.tbt_slo),
        "scheduled_s": (
            np.where(first_turn, one.scheduled, 0.0),
            np.where(first_turn, two.scheduled, 0.0),
        ),
    }
    for name, (left, right) in columns.items():
        differs = ~np.isclose(left, right, rtol=1e-9, atol=1e-6, equal_nan=True)
        if differs.any():
            row = int(np.argmax(differs))
            return (
                f"{name} of request {int(one.index[row])} is {right[row]:g} and not {left[row]:g}"
            )
    if one.session != two.session:
        return "its conversations are others"
    return None


def _changes(
    baseline: Figures, other: Figures, options: Options, *, paired: bool
) -> tuple[Change, ...]:
    sizes = len(baseline.judged), len(other.judged)
    if not all(sizes):
        raise ReportError(
            f"{baseline.info.name} and {other.info.name} cannot be compared: no request counts"
        )
    left, right = Columns(baseline.judged, options), Columns(other.judged, options)
    rng = np.random.default_rng(options.seed)
    block = max(1, _BLOCK // max(sizes))
    before: list[FloatArray] = []
    after: list[FloatArray] = []
    for start in range(0, options.resamples, block):
        sets = min(block, options.resamples - start)
        rows = rng.integers(0, sizes[0], (sets, sizes[0]))
        theirs = rows if paired else rng.integers(0, sizes[1], (sets, sizes[1]))
        before.append(_all_figures(Sample(left, rows)))
        after.append(_all_figures(Sample(right, theirs)))
    drawn = zip(np.concatenate(before, axis=1), np.concatenate(after, axis=1), strict=True)
    return tuple(
        _change(figure, figure.value(baseline), figure.value(other), *both, options.confidence)
        for figure, both in zip(CATALOGUE, drawn, strict=True)
    )


def _all_figures(sample: Sample) -> FloatArray:
    """Every figure of the catalogue, shape (figures, sets)."""
    work: list[Callable[[Sample], FloatArray]] = [figure.resampled for figure in CATALOGUE]
    return np.stack([one(sample) for one in work])


def _change(
    figure: Figure,
    baseline: float,
    value: float,
    before: FloatArray,
    after: FloatArray,
    confidence: float,
) -> Change:
    nan = math.nan
    ratio = value / baseline if baseline > 0 else nan
    if not (math.isfinite(baseline) and math.isfinite(value)):
        return Change(figure, baseline, value, nan, nan, nan, nan, nan, Verdict.unknown)
    ends = (50 * (1 - confidence), 50 * (1 + confidence))
    usable = np.isfinite(before) & np.isfinite(after)  # a drawn set may lack what it asks for
    before, after = before[usable], after[usable]
    low, high = _interval(after - before, ends)
    ratio_low = ratio_high = nan
    if before.size and (before > 0).all() and baseline > 0:
        ratio_low, ratio_high = _interval(after / before, ends)
    if not before.size:
        verdict = Verdict.unknown
    elif figure.alike(baseline, value):
        verdict = Verdict.unclear
    elif math.isfinite(ratio_low):
        verdict = _verdict(ratio_low - 1, ratio_high - 1, 1.0, figure)
    else:
        verdict = _verdict(low, high, max(abs(baseline), abs(value)), figure)
    return Change(figure, baseline, value, ratio, ratio_low, ratio_high, low, high, verdict)


def _interval(values: FloatArray, ends: tuple[float, float]) -> tuple[float, float]:
    if not values.size:
        return math.nan, math.nan
    low, high = np.percentile(values, ends)
    return float(low), float(high)


def _verdict(low: float, high: float, size: float, figure: Figure) -> Verdict:
    unclear = figure.resolution * size
    if low <= unclear and high >= -unclear:
        return Verdict.unclear
    return Verdict.better if (low > 0) == figure.higher_is_better else Verdict.worse
