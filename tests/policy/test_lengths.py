"""Predicted output lengths, against the slow and obvious quantile."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.policy import OutputLengths


def slow(
    seen: list[tuple[int, bool]], quantile: float, evidence: int, generated: int, limit: int
) -> float:
    """Kaplan-Meier, one length after the other, in fractions."""
    guess = limit
    if sum(length > generated for length, _ in seen) >= evidence:
        longer = Fraction(1)
        for length in sorted({length for length, cut_off in seen if not cut_off}):
            if length <= generated:
                continue
            at_risk = sum(other >= length for other, _ in seen)
            longer *= 1 - Fraction(seen.count((length, False)), at_risk)
            if longer <= 1 - Fraction(str(quantile)):
                guess = min(length, limit)
                break
    return float(max(guess, generated + 1))


def ask(lengths: OutputLengths, generated: int, limit: int) -> float:
    return float(lengths.expected(np.array([generated]), np.array([limit]))[0])


@settings(max_examples=200, deadline=None)
@given(
    seen=st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=80),
    asked=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 80)), max_size=8),
    quantile=st.sampled_from([0.01, 0.25, 0.5, 0.9, 1.0]),
    evidence=st.integers(1, 20),
    window=st.integers(20, 60),
)
def test_the_conditional_quantile(seen, asked, quantile, evidence, window) -> None:
    lengths = OutputLengths(quantile, window=window, evidence=evidence)
    for length, cut_off in seen:
        lengths.observe(length, cut_off=cut_off)
    generated = np.array([g for g, _ in asked], dtype=np.int64)
    limit = np.array([most for _, most in asked], dtype=np.int64)
    expected = lengths.expected(generated, limit)
    assert expected.dtype == np.float64
    assert expected.tolist() == [
        slow(seen[-window:], quantile, evidence, g, most) for g, most in asked
    ]


def test_by_hand() -> None:
    lengths = OutputLengths(0.9, evidence=5)
    for length in range(10, 110, 10):  # 10, 20 .. 100
        lengths.observe(length)
    assert ask(lengths, 0, 4096) == 90  # the ninth of ten
    assert ask(lengths, 50, 4096) == 100  # of 60 .. 100 the fifth
    assert ask(lengths, 60, 4096) == 4096  # four are no evidence
    assert ask(lengths, 0, 40) == 40
    assert ask(lengths, 200, 100) == 201


def test_without_cuts_it_is_the_plain_quantile() -> None:
    rng = np.random.default_rng(5)
    seen = rng.integers(1, 3000, 1000)
    lengths = OutputLengths(0.9)
    for length in seen.tolist():
        lengths.observe(length)
    for generated in (0, 100, 1500, 2800):
        longer = np.sort(seen[seen > generated])
        assert ask(lengths, generated, 4096) == longer[math.ceil(0.9 * len(longer)) - 1]


def test_answers_cut_off_by_their_limit_do_not_shorten_the_next_ones() -> None:
    lengths = OutputLengths()
    for _ in range(200):
        lengths.observe(32, cut_off=True)
    assert ask(lengths, 0, 2000) == 2000
    for _ in range(20):
        lengths.observe(500)
    assert ask(lengths, 0, 2000) == 500


def test_what_was_cut_off_counts_for_as_long_as_it_lasted() -> None:
    lengths = OutputLengths(0.5, evidence=1)
    # Two of four end at 10, one is cut off at 15, one ends at 20.
    for length, cut_off in ((10, False), (10, False), (15, True), (20, False)):
        lengths.observe(length, cut_off=cut_off)
    assert ask(lengths, 0, 4096) == 10
    assert ask(lengths, 10, 4096) == 20
    assert ask(lengths, 16, 4096) == 20


def test_without_evidence_the_limit_is_the_answer() -> None:
    lengths = OutputLengths(evidence=2)
    lengths.observe(5)
    assert ask(lengths, 0, 4096) == 4096


def test_a_quantile_of_one_is_the_longest_seen() -> None:
    lengths = OutputLengths(1.0, evidence=1)
    for length in (7, 90, 12):
        lengths.observe(length)
    assert ask(lengths, 0, 4096) == 90


def test_what_left_the_window_is_forgotten() -> None:
    lengths = OutputLengths(1.0, window=3, evidence=1)
    for length in (500, 1, 2, 3):
        lengths.observe(length)
    assert ask(lengths, 0, 4096) == 3


def test_an_observation_counts_at_once() -> None:
    lengths = OutputLengths(1.0, evidence=1)
    lengths.observe(3)
    assert ask(lengths, 0, 4096) == 3
    lengths.observe(8)
    assert ask(lengths, 0, 4096) == 8


@pytest.mark.parametrize("quantile", [0.0, -0.1, 1.1, math.nan])
def test_a_quantile_out_of_range_is_refused(quantile) -> None:
    with pytest.raises(ValueError, match=r"quantile is .*above 0 and at most 1"):
        OutputLengths(quantile)
