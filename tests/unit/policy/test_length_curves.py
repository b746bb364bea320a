"""Expectations over a curve are what sums over every possible length give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import LengthCurves
from tokenflow_sgl.contract.lengths import CERTAIN, GRID, LONGEST, cell_of


def curves_of(rng: np.random.Generator, kinds: int) -> LengthCurves:
    """Any survivals, steep and flat ones."""
    hazard = rng.beta(0.3, 10.0, (kinds, len(GRID)))
    survival = np.ones((kinds, len(GRID)))
    survival[:, 1:] = np.cumprod(1.0 - hazard, axis=1)[:, :-1]
    return LengthCurves(survival)


def share_longer(curves: LengthCurves, kind: int, tokens: int) -> float:
    return float(curves.survival[kind, np.searchsorted(GRID, tokens, side="right") - 1])


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 300), st.integers(1, 400), st.integers(0, 2000))
def test_by_summing_over_tokens(seed, generated, more, prompt) -> None:
    curves = curves_of(np.random.default_rng(seed), 2)
    limit, context = generated + more, prompt + generated
    alive = share_longer(curves, 1, generated)
    there = np.array([share_longer(curves, 1, generated + n) / alive for n in range(more)])
    of = np.array([1]), np.array([generated]), np.array([limit])
    assert curves.left(*of)[0] == pytest.approx(max(there.sum(), 1.0), rel=1e-6)
    second = (there * (2 * np.arange(more) + 1)).sum()
    assert curves.remaining(*of).variance[0] == pytest.approx(
        max(second - there.sum() ** 2, 0.0), rel=1e-4, abs=1e-3
    )
    tokens = np.array([[more / 2], [float(more)], [more * 3.0]])
    read = there * (context + np.arange(more) + 0.5)
    work = curves.remaining(*of).work(np.array([context]), tokens)[:, 0]
    assert work[1] == pytest.approx(read.sum(), rel=1e-6)
    assert work[2] == work[1], "no answer goes beyond its limit"
    assert 0.0 < work[0] <= work[1]


def test_certain_answers_end_at_their_limits() -> None:
    of = np.array([0, 0]), np.array([10, 0]), np.array([110, 40])
    curves = CERTAIN.typical
    assert curves.left(*of).tolist() == [100.0, 40.0]
    assert curves.remaining(*of).variance.tolist() == [0.0, 0.0]
    work = curves.remaining(*of).work(np.array([500, 7]), np.array([[20.0, 400.0]]))
    assert work.tolist() == [[20 * 500 + 200, 40 * 7 + 800]]


def test_coming_is_what_is_left_up_to_so_many_tokens() -> None:
    survival = np.ones((1, len(GRID)))
    survival[0, GRID >= 100] = 0.5  # half of the answers end at 100 tokens, the others go on
    answers = LengthCurves(survival).remaining(
        np.zeros(2, dtype=np.int64), np.array([0, 90]), np.array([400, 400])
    )
    edge = float(GRID[GRID >= 100][0])
    found = answers.coming(np.array([[50.0, 5.0], [edge + 100.0, 1000.0]]))
    assert found[0].tolist() == [50.0, 5.0]
    assert found[1].tolist() == pytest.approx([edge + 50.0, edge - 90.0 + (400.0 - edge) / 2.0])
    assert answers.coming(np.full(2, 1e6)).tolist() == pytest.approx(answers.left.tolist())


def test_beyond_the_grid_an_answer_goes_on() -> None:
    assert cell_of(np.array([LONGEST, 10 * LONGEST])).tolist() == [len(GRID) - 1] * 2
    far = np.array([0]), np.array([2 * LONGEST]), np.array([4 * LONGEST])
    assert CERTAIN.typical.left(*far).tolist() == [1.0]


def test_the_grid_knows_short_answers_to_the_token() -> None:
    assert GRID[:33].tolist() == list(range(33))
    assert (np.diff(GRID[33:]) / GRID[33:-1]).max() < 0.06
    assert GRID[-1] == LONGEST


@pytest.mark.parametrize(
    ("survival", "words"),
    [
        (np.ones((1, 5)), "survival has the shape"),
        (np.ones((1, len(GRID))), "2 or more"),
        (np.full((2, len(GRID)), 0.5), "start at 1"),
        (np.linspace(1.0, -1.0, len(GRID))[None, :].repeat(2, axis=0), "must not be negative"),
        (np.linspace(1.0, 2.0, len(GRID))[None, :].repeat(2, axis=0), "not increase"),
        (np.full((2, len(GRID)), np.nan), "start at 1"),
    ],
)
def test_what_is_no_survival_is_named(survival, words) -> None:
    with pytest.raises(ValueError, match=words):
        LengthCurves(survival).check(2)
    CERTAIN.repeated(2).typical.check(2)
