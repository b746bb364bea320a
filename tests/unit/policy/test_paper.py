"""The paper's baseline, against its equations worked by hand."""

from __future__ import annotations

import math

import pytest

from tokenflow_sgl.contract import Cause, Mode, Phase, Preempt
from tokenflow_sgl.policy.baselines import PaperConfig, PaperPolicy, StockPolicy
from tokenflow_sgl.policy.baselines.paper import PaperMemo
from tokenflow_sgl.policy.selection import Penalty


def decide(state, **config):
    return PaperPolicy(PaperConfig(**config)).decide(state)


@pytest.fixture
def burst(make_state, make_stream):
    """Five of 200 tokens fill the memory of 1000; ten prompts of 20 tokens wait."""

    def make(slack=5.0, waiting=10, **given):
        rows = [make_stream(slack=slack)] * 5
        rows += [make_stream(Phase.WAITING, prompt=20)] * waiting
        return make_state(rows, total=1000, **given)

    return make


# Eq. 4: 4 * 1000 / 200 = 20 streams. Eq. 5: 20 - lambda * (20 - 5), less the five there are.
@pytest.mark.parametrize(
    ("adjustment", "joining"),
    [(0.5, 7), (0.0, 10), (1.0, 0), (0.9, 1)],
)
def test_equations_4_and_5_bound_the_working_set(burst, adjustment, joining) -> None:
    decision = decide(burst(), adjustment=adjustment)
    assert decision.mode is Mode.WORKING_SET
    assert decision.admit == tuple(range(15, 15 + joining))


# A switch takes two loads of 200 tokens and an interval: 2 * 1.6 ms + 1 s; twice that is 2.0064.
@pytest.mark.parametrize(("slack", "joining"), [(2.007, 7), (2.006, 0)])
def test_newcomers_join_only_if_buffers_bear_the_switch(burst, slack, joining) -> None:
    assert len(decide(burst(slack)).admit) == joining


def test_a_stream_joins_an_empty_working_set(make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, prompt=5000)] * 2
    assert decide(make_state(rows, total=1000)).admit == (10,)


# The five read 50 tokens/s together.
@pytest.mark.parametrize(
    ("throughput", "before", "after"),
    [
        (49.0, False, True),
        (50.0, False, False),
        (55.0, True, True),  # 50 > 0.9 * 55
        (55.0, False, False),
        (56.0, True, False),
        (math.nan, True, False),
    ],
)
def test_the_fallback_of_equation_6_switches_with_hysteresis(
    burst, throughput, before, after
) -> None:
    state = burst(throughput=throughput, memo=PaperMemo(overloaded=before))
    decision = decide(state)
    assert decision.memo.overloaded is after
    assert bool(decision.admit) is not after


def test_the_fallback_can_be_switched_off(burst) -> None:
    decision = decide(burst(throughput=1.0), fallback=False)
    assert not decision.memo.overloaded
    assert decision.admit


def test_the_fallback_serves_in_order_of_arrival(make_state, make_stream) -> None:
    # One of two fits; the later one has nothing left to read.
    rows = [make_stream(Phase.PAUSED, slack=9.0), make_stream(Phase.PAUSED, slack=0.0)]
    state = make_state(rows, total=250, throughput=1.0)
    assert decide(state).run == (10,)
    assert decide(state, fallback=False, penalty=Penalty.CORRECTED).run == (11,)


def test_the_fallback_serves_the_first_before_several_later_ones(make_state, make_stream) -> None:
    rows = [make_stream(Phase.PAUSED, prompt=100)]  # 200 tokens
    rows += [make_stream(Phase.PAUSED, prompt=1, generated=99)] * 3  # 100 tokens each
    state = make_state(rows, total=200, throughput=1.0)
    assert decide(state).run == (10,)


@pytest.mark.parametrize(("penalty", "chosen"), [(Penalty.PRINTED, 11), (Penalty.CORRECTED, 10)])
def test_the_printed_sign_starves_the_empty_buffer(
    make_state, make_stream, penalty, chosen
) -> None:
    rows = [make_stream(Phase.PAUSED, slack=0.1), make_stream(Phase.PAUSED, slack=3.0)]
    assert decide(make_state(rows, total=250), penalty=penalty).run == (chosen,)


def test_a_full_buffer_gives_way_to_an_empty_one(make_state, make_stream) -> None:
    rows = [make_stream(slack=9.0), make_stream(Phase.PAUSED, slack=0.0)]
    decision = decide(make_state(rows, total=250), penalty=Penalty.CORRECTED)
    assert decision.preempt == (Preempt(10, Cause.EXCHANGE),)
    assert decision.run == (11,)


def test_a_stream_that_cannot_be_preempted_stays(make_state, make_stream) -> None:
    rows = [make_stream(slack=9.0, preemptible=False), make_stream(Phase.PAUSED, slack=0.0)]
    assert decide(make_state(rows, total=250), penalty=Penalty.CORRECTED).preempt == ()


@pytest.mark.parametrize(("last", "kept"), [(99.1, True), (99.0, False)])
def test_the_selection_is_kept_for_an_interval(make_state, make_stream, last, kept) -> None:
    rows = [make_stream(), make_stream(Phase.PAUSED)]
    before = PaperMemo(planned=last, plan=(11, 99))
    decision = decide(make_state(rows, memo=before))
    assert (decision.memo == before) is kept
    assert decision.run == (11,), "the other one has ended"


def test_little_memory_without_any_stream_is_no_reason_to_fail(make_state) -> None:
    assert decide(make_state([], free=0)).run == ()


def test_without_stress_the_engine_is_left_alone(make_state, make_stream) -> None:
    assert decide(make_state([make_stream()])).mode is Mode.IDLE


def test_the_stock_policy_never_steps_in(make_state, make_stream) -> None:
    decision = StockPolicy().decide(make_state([make_stream(Phase.PAUSED)]))
    assert decision.mode is Mode.IDLE
