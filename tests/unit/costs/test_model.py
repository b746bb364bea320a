"""The linear cost model, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.costs import StepCosts

COSTS = StepCosts(decode=(0.01, 1e-3, 1e-6), prefill=(0.002, 1e-4, 1e-8), load=(0.005, 2e-6))


def test_a_decode_step_by_hand() -> None:
    # 10 ms + 8 rows * 1 ms + 2000 tokens * 1 us
    assert COSTS.decode_seconds(8, 2000) == pytest.approx(0.020)


def test_a_prefill_by_hand() -> None:
    # 2 ms + 100 tokens * 0.1 ms, and 100 * (0 + 50) units of attention at 10 ns
    assert COSTS.prefill_seconds(100) == pytest.approx(0.012 + 5e-5)
    # after a prefix of 1000: 100 * (1000 + 50)
    assert COSTS.prefill_seconds(100, 1000) == pytest.approx(0.012 + 1.05e-3)


def test_a_load_by_hand() -> None:
    assert COSTS.load_seconds(1000) == pytest.approx(0.007)


def test_arrays_are_answered_like_each_number() -> None:
    tokens = np.array([1.0, 10.0, 5000.0])
    for cost in (COSTS.prefill_seconds, COSTS.load_seconds, StepCosts().prefill_seconds):
        assert cost(tokens).tolist() == pytest.approx([cost(t) for t in tokens.tolist()])


def test_a_prefill_in_two_parts_does_the_same_attention() -> None:
    free_start = StepCosts(prefill=(0.0, 1e-4, 1e-8))
    parts = free_start.prefill_seconds(300.0) + free_start.prefill_seconds(700.0, 300.0)
    assert parts == pytest.approx(free_start.prefill_seconds(1000.0))


def test_what_was_not_measured_costs_nothing() -> None:
    nothing = StepCosts()
    assert nothing.decode_seconds(100, 10**6) == 0.0
    assert nothing.prefill_seconds(1000) == 0.0
    assert nothing.load_seconds(1000) == 0.0
    assert nothing.load_seconds(np.array([1.0, 2.0])).tolist() == [0.0, 0.0]
