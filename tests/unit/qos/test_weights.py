from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.qos import effective_weight, token_weight
from tokenflow_sgl.qos.weights import together_weight

BUFFERS = st.floats(0, 500)
LENGTHS = st.integers(1, 2000)


def test_eq1_by_hand() -> None:
    # tau = 4, alpha = 0.25: 1 up to 4; 5 -> 1 - 0.25; 6.5 -> 1 - 0.625; 8 -> 0; 100 -> clipped at 0
    weights = token_weight([0, 4, 5, 6.5, 8, 100], 4, 0.25)
    np.testing.assert_allclose(weights, [1, 1, 0.75, 0.375, 0, 0])


def test_effective_weight_by_hand() -> None:
    # L = 100: full up to 10, nothing from 20 on, half way at 15, 0.8 at 12
    np.testing.assert_allclose(
        effective_weight([0, 10, 12, 15, 20, 21], 100), [1, 1, 0.8, 0.5, 0, 0], atol=1e-12
    )


def test_lengths_broadcast_against_buffers() -> None:
    # a buffer of 15 tokens: half of the band of L = 100, below the band of L = 200, beyond L = 10
    np.testing.assert_allclose(effective_weight(15, [100, 200, 10]), [0.5, 1, 0], atol=1e-12)
    assert effective_weight(15, 100).shape == ()


def test_very_short_output_has_a_band_narrower_than_a_token() -> None:
    # L = 5: zero from 1 token on, so of two tokens together the second counts for nothing
    np.testing.assert_allclose(effective_weight([0, 0.5, 0.75, 1], 5), [1, 1, 0.5, 0])


@settings(deadline=None)
@given(st.lists(BUFFERS, min_size=1), LENGTHS)
def test_effective_weight_is_eq1_with_a_relative_band(buffers: list[float], length: int) -> None:
    eq1 = token_weight(buffers, 0.1 * length, 1 / (0.1 * length))
    np.testing.assert_allclose(effective_weight(buffers, length), eq1, atol=1e-9)
    assert ((eq1 >= 0) & (eq1 <= 1)).all()
    assert (np.diff(token_weight(sorted(buffers), 3, 0.1)) <= 0).all()


@settings(deadline=None)
@given(st.lists(st.tuples(BUFFERS, st.integers(0, 300), LENGTHS), min_size=1, max_size=20))
def test_closed_form_of_a_joint_delivery_is_the_sum(cases: list[tuple[float, int, int]]) -> None:
    buffers, counts, lengths = np.array(cases, dtype=np.float64).T
    summed = [effective_weight(b + np.arange(int(k)), n).sum() for b, k, n in cases]
    together = together_weight(buffers, counts, 0.1 * lengths, 0.2 * lengths)
    np.testing.assert_allclose(together, summed, atol=1e-7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, -2], 1, 1), r"buffer_tokens must hold .* >= 0 everywhere, got -2.0 at index 1"),
        ((float("nan"), 1, 1), "buffer_tokens must be a finite number >= 0, got nan"),
        ((1, -1, 1), "tau must be a finite number >= 0, got -1.0"),
        ((1, 1, 0), "alpha must be a finite number > 0, got 0.0"),
        ((1, 1, float("inf")), "alpha must be a finite number > 0, got inf"),
    ],
)
def test_eq1_refuses(arguments: tuple[float, float, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        token_weight(*arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, -5), "output_tokens must be a finite number > 0, got -5.0"),
        ((1, 0), "output_tokens must be a finite number > 0, got 0.0"),
        ((-1, 10), "buffer_tokens must be a finite number >= 0, got -1.0"),
        ((1, 10, 0.2, 0.2), "tau2 must be > tau1 .* got tau1=0.2, tau2=0.2"),
        ((1, 10, -0.1, 0.2), "tau1 must be a finite number >= 0, got -0.1"),
    ],
)
def test_effective_weight_refuses(arguments: tuple[float, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        effective_weight(*arguments)
