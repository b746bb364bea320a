"""Whose KV is loaded next, and batches played through."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokenflow_sgl.restoration import (
    Channel,
    IoOrder,
    Job,
    Pending,
    PrefillMachine,
    best_split,
    in_chunks,
    io_order,
    schedule,
)
from tokenflow_sgl.restoration.prefix_way import PrefixWay

PIECE = 256
COMPUTE = in_chunks(
    lambda n, prefix: max(0.006, 0.001 + 20e-6 * n + 0.6e-9 * n * (prefix + n / 2)), 512
)


def machine(rate: float = 40_000.0, **more) -> PrefillMachine:
    channels = more.pop("channels", (Channel("storage", rate, 0.001),))
    return PrefillMachine(COMPUTE, channels, page=64, chunk=512, **more)


@pytest.mark.parametrize(
    ("slacks", "recomputes", "order"),
    [
        ((math.inf, math.inf, math.inf), (1.0, 3.0, 2.0), [1, 2, 0]),
        ((9.0, 9.0, 9.0), (1.0, 1.0, 1.0), [0, 1, 2]),
        ((2.0, 1.0, math.inf), (1.0, 1.0, 5.0), [1, 0, 2]),  # all loads take 3 s
        ((4.0, 2.0, 3.5), (9.0, 1.0, 5.0), [1, 0, 2]),
        ((-1.0, -2.0, 0.0), (1.0, 1.0, 9.0), [1, 0, 2]),
    ],
)
def test_least_slack_then_the_largest_recompute(slacks, recomputes, order) -> None:
    pending = [Pending(r, 1.0, s) for s, r in zip(slacks, recomputes, strict=True)]
    assert io_order(pending) == order


@pytest.mark.parametrize("rate", [5_000.0, 20_000.0, 40_000.0, 160_000.0])
@pytest.mark.parametrize("gap", [2048, 8192, 32768])
def test_one_request_is_within_five_percent_of_the_best_split(gap, rate) -> None:
    outcome = schedule([Job(gap)], machine(rate, piece=64))
    suffix = COMPUTE(gap, 1)
    best = best_split(
        0, gap, compute=COMPUTE, fetch=machine(rate).channels[0].seconds, page=64
    ).seconds
    # A piece of either may end after the other has nothing left to do.
    piece = COMPUTE(gap - 64, 64)
    assert best - 1e-9 <= outcome.seconds - suffix <= 1.05 * best + piece
    assert outcome.seconds <= min(COMPUTE(0, gap + 1), gap / rate + 0.001 + suffix) * 1.0001


@settings(max_examples=50)
@example([1793], 11747.0, IoOrder.IN_TURN)
@example([2497], 19295.0, IoOrder.IN_TURN)
@given(
    st.lists(st.integers(64, 6000), min_size=1, max_size=5),
    st.floats(2e3, 2e5),
    st.sampled_from(list(IoOrder)),
)
def test_all_is_restored_once(gaps, rate, order) -> None:
    jobs = [Job(gap, suffix=32) for gap in gaps]
    outcome = schedule(jobs, machine(rate, order=order))
    for gap, served in zip(gaps, outcome.served, strict=True):
        assert served.computed + served.loaded == gap
    assert outcome.computing <= outcome.seconds + 1e-9
    assert outcome.loading[0] <= outcome.seconds + 1e-9
    # What a chunk overtakes was loaded for nothing: a piece at most, and each of the last two may.
    # Or all that had landed of a request that is computed alone after all.
    brought = outcome.loading[0] * rate
    wasted = [
        2 * PIECE if served.loaded else gap
        for gap, served in zip(gaps, outcome.served, strict=True)
    ]
    assert sum(served.loaded for served in outcome.served) <= brought + 1e-6
    assert brought <= sum(served.loaded for served in outcome.served) + sum(wasted) + 1e-6
    # Never later than by the better source alone, but for a chunk of each at the end.
    alone = [
        schedule([Job(gap, 32, way) for gap in gaps], machine(rate)).seconds
        for way in (PrefixWay.RECOMPUTE, PrefixWay.LOAD)
    ]
    assert outcome.seconds <= min(alone) + sum(COMPUTE(gap, 512) for gap in gaps)


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_a_batch_is_within_five_percent_of_the_bound(batch) -> None:
    # No schedule is done before all tails have come one after the other, and all heads likewise.
    best = best_split(0, 8192, compute=COMPUTE, fetch=lambda n: n / 40_000.0, page=64).seconds
    outcome = schedule([Job(8192) for _ in range(batch)], machine(40_000.0))
    assert batch * best <= outcome.seconds <= 1.05 * batch * (best + COMPUTE(8192, 1))


def test_a_batch_keeps_device_and_link_busy() -> None:
    outcome = schedule([Job(8192) for _ in range(8)], machine(40_000.0))
    assert outcome.computing / outcome.seconds > 0.95
    assert outcome.loading[0] / outcome.seconds > 0.9


def test_in_turn_has_the_lower_mean_and_largest_first_at_times_the_earlier_end() -> None:
    equal = [Job(8192) for _ in range(4)]
    turn, largest = (schedule(equal, machine(40_000.0, order=order)) for order in IoOrder)
    assert turn.mean_ttft < 0.8 * largest.mean_ttft
    assert turn.seconds <= largest.seconds
    unequal = [*(Job(1024) for _ in range(3)), Job(32768)]
    turn, largest = (schedule(unequal, machine(20_000.0, order=order)) for order in IoOrder)
    assert turn.mean_ttft < largest.mean_ttft
    assert turn.seconds > largest.seconds


def test_a_deadline_is_served_first() -> None:
    def ttft(order: IoOrder, deadline: float) -> float:
        jobs = [Job(4096, way=PrefixWay.LOAD, deadline=deadline), Job(32768)]
        return schedule(jobs, machine(20_000.0, order=order)).served[0].ttft

    assert ttft(IoOrder.LARGEST, 0.3) < 0.5 * ttft(IoOrder.LARGEST, math.inf)


def test_stock_waits_gives_up_or_does_not_wait() -> None:
    gap, rate = 32768, 5_000.0

    def run(patience: float):
        return schedule([Job(gap, 64, PrefixWay.LOAD, patience=patience)], machine(rate))

    wait = run(math.inf)
    assert wait.seconds == pytest.approx(gap / rate + 0.001 + COMPUTE(gap, 64), rel=1e-3)
    assert wait.served[0].computed == 0
    limit = run(1.0)
    assert 0 < limit.served[0].loaded <= rate
    assert limit.served[0].computed + limit.served[0].loaded == gap
    assert limit.seconds == pytest.approx(
        1.0 + COMPUTE(limit.served[0].loaded, gap + 64 - limit.served[0].loaded), rel=1e-3
    )
    at_once = run(0.0)
    assert at_once.served[0].loaded == 0
    assert at_once.seconds == pytest.approx(COMPUTE(0, gap + 64))


def test_a_dead_channel_costs_nothing() -> None:
    dead = (Channel("storage", 0.0),)
    outcome = schedule([Job(8192, 64)], machine(channels=dead))
    assert outcome.seconds == pytest.approx(COMPUTE(0, 8192 + 64))
    assert outcome.served[0].loaded == 0


def test_two_channels_load_at_the_same_time() -> None:
    both = (Channel("storage", 20_000.0), Channel("other", 20_000.0))
    jobs = [Job(8192, way=PrefixWay.LOAD), Job(8192, way=PrefixWay.LOAD, channel=1)]
    outcome = schedule(jobs, machine(channels=both))
    assert outcome.seconds < 1.1 * 8192 / 20_000.0
    assert outcome.loading == pytest.approx((8192 / 20_000.0,) * 2)


def test_later_arrivals_load_while_another_computes() -> None:
    jobs = [Job(8192, way=PrefixWay.RECOMPUTE), Job(8192, arrival=0.05)]
    outcome = schedule(jobs, machine(40_000.0))
    assert outcome.served[1].loaded > 6000
    assert outcome.served[1].ttft < 8192 / 40_000.0 + 0.1


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([], "jobs is empty"),
        ([Job(1, channel=1)], "job 0: channel is 1; there is no such channel"),
    ],
)
def test_bad_batches_are_named(jobs, message) -> None:
    with pytest.raises(ValueError, match=message):
        schedule(jobs, machine())
    with pytest.raises(ValueError, match="gap is 0; allowed is 1 or more"):
        Job(0)
    with pytest.raises(ValueError, match="allowed is RECOMPUTE, LOAD or TOKENS"):
        Job(1, way=PrefixWay.LAYERS)
    with pytest.raises(ValueError, match="job 0 waits without end"):
        schedule([Job(1, way=PrefixWay.LOAD)], machine(channels=(Channel("storage", 0.0),)))
