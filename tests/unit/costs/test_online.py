"""Costs learned from noisy steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.costs import OnlineCosts, StepCosts
from tokenflow_sgl.costs.online import LinearCost

TRUE = StepCosts(decode=(0.008, 1e-4, 5e-8), prefill=(0.004, 6e-5, 1e-8), load=(0.002, 3e-6))
NOISE = 0.03


def serve(
    learned: OnlineCosts, rng: np.random.Generator, steps: int, *, slower: float = 1.0
) -> None:
    """Steps of a device whose costs are `TRUE`, with some noise in their durations."""
    for _ in range(steps):
        factor = slower * float(rng.normal(1.0, NOISE))
        batch, context = int(rng.integers(1, 200)), int(rng.integers(100, 2000))
        kv = batch * context
        learned.observe_decode(batch, kv, TRUE.decode_seconds(batch, kv) * factor)
        tokens, prefix = int(rng.integers(16, 4096)), int(rng.integers(0, 8000))
        work = tokens * (prefix + tokens / 2)
        learned.observe_prefill(tokens, work, TRUE.prefill_seconds(tokens, prefix) * factor)
        learned.observe_load(tokens, TRUE.load_seconds(tokens) * factor)


def assert_predicts(costs: StepCosts, factor: float, within: float) -> None:
    for batch, kv in ((1, 200), (8, 8_000), (64, 50_000), (200, 250_000)):
        true = factor * TRUE.decode_seconds(batch, kv)
        assert costs.decode_seconds(batch, kv) == pytest.approx(true, rel=within)
    for tokens, prefix in ((64, 0), (512, 4000), (4096, 0)):
        true = factor * TRUE.prefill_seconds(tokens, prefix)
        assert costs.prefill_seconds(tokens, prefix) == pytest.approx(true, rel=within)
    for tokens in (100, 4000):
        true = factor * TRUE.load_seconds(tokens)
        assert costs.load_seconds(tokens) == pytest.approx(true, rel=within)


def test_a_known_model_is_recovered_from_noisy_steps() -> None:
    learned = OnlineCosts()
    serve(learned, np.random.default_rng(1), 1000)
    costs = learned.snapshot()
    assert_predicts(costs, 1.0, within=0.05)
    assert costs.decode == pytest.approx(TRUE.decode, rel=0.15)
    assert costs.prefill == pytest.approx(TRUE.prefill, rel=0.15)
    assert costs.load == pytest.approx(TRUE.load, rel=0.15)


def test_exact_steps_are_recovered_exactly() -> None:
    model = LinearCost(2, memory=1000.0, leading=0)
    for tokens in range(1, 50):
        model.observe((1.0, tokens), 0.5 + 0.25 * tokens)
    assert model.coefficients() == pytest.approx([0.5, 0.25], rel=1e-4)


def test_drift_is_followed() -> None:
    rng = np.random.default_rng(2)
    learned = OnlineCosts(memory=100.0, decode_memory=100.0)
    serve(learned, rng, 400)
    assert_predicts(learned.snapshot(), 1.0, within=0.08)
    serve(learned, rng, 600, slower=2.0)
    assert_predicts(learned.snapshot(), 2.0, within=0.08)


def test_a_snapshot_before_data_is_empty() -> None:
    assert OnlineCosts().snapshot() == StepCosts()


def test_each_model_is_known_by_itself() -> None:
    learned = OnlineCosts()
    learned.observe_decode(4, 1000, 0.01)
    costs = learned.snapshot()
    assert costs.decode_seconds(4, 1000) == pytest.approx(0.01)
    assert costs.prefill is None
    assert costs.load is None


def test_a_snapshot_does_not_change_afterwards() -> None:
    learned = OnlineCosts()
    learned.observe_decode(4, 1000, 0.01)
    before = learned.snapshot()
    kept = StepCosts(decode=before.decode, seen_rows=4.0)
    learned.observe_decode(4, 1000, 5.0)
    assert before == kept
    assert learned.snapshot() != kept


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_impossible_durations_are_ignored(seconds) -> None:
    learned = OnlineCosts()
    learned.observe_decode(4, 1000, seconds)
    assert learned.snapshot().decode is None


def test_steps_that_all_look_alike_are_predicted_as_measured() -> None:
    learned = OnlineCosts()
    for _ in range(500):
        learned.observe_prefill(2048, 2048 * 1024.0, 0.125)
    assert learned.snapshot().prefill_seconds(2048) == pytest.approx(0.125, rel=1e-3)


def test_while_all_steps_look_alike_the_leading_cost_explains_them() -> None:
    # One stream of 1,000 tokens must not teach that 33 of them take 33 times as long.
    learned = OnlineCosts()
    for _ in range(10):
        learned.observe_decode(1, 1000, 0.02)
        learned.observe_prefill(2048, 2048 * 1024.0, 0.3)
        learned.observe_load(1000, 0.02)
    costs = learned.snapshot()
    assert costs.decode_seconds(33, 33_000) < 0.04
    assert costs.prefill_seconds(256) == pytest.approx(0.3 / 8, rel=0.2)
    assert costs.load_seconds(4000) == pytest.approx(0.08, rel=0.1)


def test_attention_does_not_explain_what_tokens_explain() -> None:
    # Chunks that all look alike but for noise; the noise would fit attention alone a little better.
    rng = np.random.default_rng(3)
    learned = OnlineCosts()
    for _ in range(30):
        mean = float(rng.normal(260.0, 5.0))
        learned.observe_prefill(2048, 2048 * mean, 0.34 * mean / 260.0)
    costs = learned.snapshot()
    assert costs.prefill is not None
    assert costs.prefill_seconds(512) == pytest.approx(0.34 / 4, rel=0.1)


def test_a_small_remainder_of_a_long_step_does_not_outvote_others() -> None:
    learned = OnlineCosts()
    for _ in range(50):
        learned.observe_prefill(1000, 0.0, 0.2)
    # Too much was subtracted from three mixed steps: next to nothing and less is left.
    for left in (1e-6, 0.0, -0.05):
        learned.observe_prefill(1000, 0.0, left, whole=0.3)
    assert learned.snapshot().prefill_seconds(1000) == pytest.approx(0.2, rel=0.05)


def test_relative_error_counts_so_long_steps_do_not_outvote_short_ones() -> None:
    # 5 ms steps and an outlier in a long one: the short ones stay within a few per cent.
    learned = OnlineCosts()
    for _ in range(100):
        learned.observe_load(100, 0.005)
        learned.observe_load(100_000, 0.2)
    learned.observe_load(100_000, 0.6)
    assert learned.snapshot().load_seconds(100) == pytest.approx(0.005, rel=0.05)


def test_a_step_that_is_timed_too_short_weighs_as_any_other() -> None:
    learned = OnlineCosts()
    for number in range(400):
        learned.observe_decode(60, 60_000, 0.0015 if number % 100 == 99 else 0.02)
        assert learned.snapshot().decode_seconds(60, 60_000) == pytest.approx(0.02, rel=0.05)


def test_steps_that_stay_short_are_believed() -> None:
    learned = OnlineCosts(memory=100.0, decode_memory=100.0)
    for number in range(600):
        learned.observe_decode(60, 60_000, 0.02 if number < 200 else 0.002)
        learned.snapshot()
    assert learned.snapshot().decode_seconds(60, 60_000) == pytest.approx(0.002, rel=0.1)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 512),
            st.integers(0, 10**6),
            st.floats(1e-6, 100.0),
        ),
        min_size=1,
        max_size=40,
    )
)
def test_coefficients_are_never_negative(steps) -> None:
    learned = OnlineCosts()
    for amount, other, seconds in steps:
        learned.observe_decode(amount, other, seconds)
        learned.observe_prefill(amount, float(other), seconds)
        learned.observe_load(amount, seconds)
    costs = learned.snapshot()
    for coefficients in (costs.decode, costs.prefill, costs.load):
        assert coefficients is not None
        assert all(np.isfinite(c) and c >= 0.0 for c in coefficients)
