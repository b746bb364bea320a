"""Steps told at once teach the same, to the last bit, as told one by one."""

from __future__ import annotations

import random

import pytest

from tokenflow_sgl.costs import StepTimer, Work
from tokenflow_sgl.costs.online import LinearCost


@pytest.mark.parametrize("seed", range(4))
def test_a_block_of_steps_is_as_step_by_step(seed) -> None:
    rng = random.Random(seed)
    alone, at_once = StepTimer(lag=0), StepTimer(lag=0)
    now = 0.0
    for _ in range(40):
        rows, context = rng.randrange(1, 50), rng.randrange(1, 10_000)
        tokens = rng.choice((0, 0, 0, 200))
        count = 1 if tokens else rng.randrange(1, 20)
        crowded = rng.random() < 0.3
        work = Work(rows, context, tokens, 10.0 * tokens, crowded=crowded)
        start = now = now + rng.choice((0.0, 0.1))
        ends = []
        for _ in range(count):
            now += rng.choice((0.0, rng.uniform(0.001, 0.02), 0.01))
            ends.append(now)
        at_once.ran(work, start, ends, [rows] * count)
        at_once.produced_in(ends, [rows] * count)
        begin = start
        for number, end in enumerate(ends):
            each = Work(rows, context + number * rows, tokens, 10.0 * tokens, crowded=crowded)
            alone.begin(begin)
            alone.launch(each)
            alone.begin(end)
            alone.launch(None)
            alone.produced(end, rows)
            begin = end
        assert at_once.costs() == alone.costs()
        assert at_once.kv_rate() == pytest.approx(alone.kv_rate(), abs=0.0, nan_ok=True)
        assert at_once.prefill_share() == alone.prefill_share()
        assert at_once.throughput() == pytest.approx(alone.throughput(), abs=0.0, nan_ok=True)
        assert at_once.last_prefill_end == alone.last_prefill_end


def test_a_far_too_short_step_weighs_as_half_of_what_was_predicted() -> None:
    """As the rule says, computed with exact predictions."""
    cost = LinearCost(2, memory=100.0, leading=1)
    for tokens in (100.0, 400.0, 900.0):
        cost.observe((1.0, tokens), 0.5 + 0.25 * tokens)
    assert cost.coefficients() == pytest.approx([0.5, 0.25], rel=1e-3)
    kept = LinearCost(2, memory=100.0, leading=1, least=0.0)
    for tokens in (100.0, 400.0, 900.0):
        kept.observe((1.0, tokens), 0.5 + 0.25 * tokens)
    kept.coefficients()
    cost.observe((1.0, 400.0), 1.0)
    kept.observe((1.0, 400.0), 1.0)
    # Without a least weight the short step decides nearly alone.
    assert kept.coefficients() @ [1.0, 400.0] < 0.1 * (cost.coefficients() @ [1.0, 400.0])
