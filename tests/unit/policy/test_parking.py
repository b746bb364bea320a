"""Parking: which streams rest, and the closed loop that limits it."""

from __future__ import annotations

import math

import pytest

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.parking import LOWER, RAISE, THINNED, next_share, parked, thinned

# A batch of b yields b / (0.01 + 0.001 b) tokens/s: 20 streams 666.7, 12 streams 545.5,
# 11 streams 523.8.
COSTS = StepCosts(decode=(0.01, 0.001, 0.0))
CONFIG = WorkingSetConfig()


@pytest.fixture
def batch(make_state, make_stream):
    """A state of `count` streams, all 20 s ahead, the later ones with more output."""

    def make(count=20, *more, **given):
        rows = [make_stream(slack=20.0, generated=100 + i) for i in range(count)]
        given.setdefault("costs", COSTS)
        return make_state([*rows, *more], **given)

    return make


def share_after(batch, share, config=CONFIG, **given) -> float:
    return next_share(batch(**given), config, share)


def test_the_share_rises_when_throughput_falls_behind(batch) -> None:
    # 0.85 * 666.7 = 566.7
    assert share_after(batch, 0.85, throughput=566.0) == pytest.approx(0.85 + RAISE)


def test_the_share_falls_slowly_while_throughput_holds(batch) -> None:
    assert share_after(batch, 0.85, throughput=567.0) == pytest.approx(0.85 - LOWER)
    assert LOWER < RAISE


def test_the_share_stays_between_the_floor_and_one(batch) -> None:
    assert share_after(batch, 0.995, throughput=1.0) == 1.0
    assert share_after(batch, 0.804, throughput=1e6) == 0.8
    assert share_after(batch, 0.5, throughput=1e6) == 0.8


def test_the_share_stays_while_nothing_is_known(batch) -> None:
    assert share_after(batch, 0.9, throughput=math.nan) == 0.9
    assert share_after(batch, 0.9, throughput=1.0, costs=StepCosts()) == 0.9


def test_parking_switched_off_keeps_everything(batch) -> None:
    assert share_after(batch, 0.8, WorkingSetConfig(park=False), throughput=1e6) == 1.0


def test_the_least_progressed_rest_and_the_share_is_kept(batch) -> None:
    # 0.8 * 666.7 = 533.3 tokens/s need 12 streams, so 8 may rest.
    assert parked(batch(), CONFIG, 0.8).tolist() == list(range(8))


@pytest.mark.parametrize("share", [0.8, 0.9, 0.99, 0.999])
def test_what_keeps_running_yields_the_share(batch, share) -> None:
    def rate(b):
        return b / (0.01 + 0.001 * b)

    keep = 20 - len(parked(batch(), CONFIG, share))
    assert rate(keep) >= share * rate(20)
    assert rate(keep - 1) < share * rate(20)


def test_a_full_share_parks_no_stream(batch) -> None:
    assert not len(parked(batch(), CONFIG, 1.0))


def test_no_stream_is_parked_while_another_waits(batch, make_stream) -> None:
    assert not len(parked(batch(20, make_stream(Phase.WAITING)), CONFIG, 0.8))


def test_no_stream_is_parked_while_costs_are_unknown(batch) -> None:
    assert not len(parked(batch(costs=StepCosts()), CONFIG, 0.8))


@pytest.mark.parametrize(("count", "parks"), [(7, False), (8, True)])
def test_small_batches_are_left_alone(batch, count, parks) -> None:
    assert bool(len(parked(batch(count), CONFIG, 0.8))) is parks


def test_paused_streams_rest_on_like_running_ones(batch, make_stream) -> None:
    paused = make_stream(Phase.PAUSED, slack=20.0, generated=1)
    # 21 streams yield 677.4; 0.8 of that need 12: 9 rest, first the paused one.
    assert parked(batch(20, paused), CONFIG, 0.8).tolist() == [20, *range(8)]


@pytest.mark.parametrize(
    "given",
    [
        {"slack": 4.0},  # no more than the useful band
        {"preemptible": False},
        {"since": 99.7},  # less than min_run
        {"phase": Phase.DRAINING},
    ],
)
def test_only_a_stream_that_is_ahead_and_may_be_preempted_rests(
    make_state, make_stream, given
) -> None:
    rows = [make_stream(**{"slack": 20.0, **given})] + [make_stream(slack=20.0)] * 19
    resting = parked(make_state(rows, costs=COSTS), CONFIG, 0.8).tolist()
    assert len(resting) == 8
    assert 0 not in resting


def test_memory_bounds_what_the_whole_batch_would_yield(batch) -> None:
    # Four streams of some 210 tokens fit: more would not run anyway, so 16 rest at any share.
    resting = parked(batch(total=900), CONFIG, 0.999)
    assert len(resting) == 16


def test_rows_bound_what_the_whole_batch_would_yield(batch) -> None:
    assert len(parked(batch(rows_limit=5), CONFIG, 0.999)) == 15


def test_a_batch_is_thinned_in_small_steps(batch) -> None:
    # While memory is full the costs may say that all of a step's time is its KV: that one stream
    # alone is as fast as forty.
    state = batch(40, costs=StepCosts(decode=(0.0, 0.0, 1e-6)))
    rest = parked(state, CONFIG, 0.8)
    assert len(rest) > 30
    step = thinned(state, rest)
    assert step.tolist() == rest.tolist()[: int(40 * THINNED)]


def test_a_stream_that_rests_already_is_not_counted(batch, make_stream) -> None:
    paused = [make_stream(Phase.PAUSED, slack=20.0, generated=1 + i) for i in range(10)]
    state = batch(20, *paused, costs=StepCosts(decode=(0.0, 0.0, 1e-6)))
    step = thinned(state, parked(state, CONFIG, 0.8))
    phases = state.streams.phase[step].tolist()
    assert phases == [Phase.PAUSED] * 10 + [Phase.RUNNING]
