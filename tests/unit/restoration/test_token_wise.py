"""Where computing and loading meet: against all splits, and as chunks land."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenflow_sgl.restoration import (
    Seconds,
    alone_is_sooner,
    best_split,
    head_tokens,
    in_chunks,
    tokens_within,
)

PAGES = st.sampled_from([1, 16, 64])
LEAD = st.floats(0.0, 0.5)


@st.composite
def computing(draw) -> Seconds:
    """Of the form of `costs.StepCosts`: constant, per token, per key that is attended to."""
    constant = draw(st.floats(0.0, 0.02))
    token = draw(st.floats(1e-6, 1e-4))
    key = draw(st.floats(0.0, 1e-8))
    chunk = draw(st.sampled_from([64, 512, 8192]))
    return in_chunks(lambda n, prefix: constant + token * n + key * n * (prefix + n / 2), chunk)


@st.composite
def loading(draw):
    latency, token = draw(st.floats(0.0, 0.05)), draw(st.floats(1e-6, 1e-3))
    return lambda tokens: latency + token * tokens if tokens else 0.0


def done(prefix, gap, head, compute, fetch, lead=0.0) -> float:
    computed = lead + compute(prefix, head) if head else 0.0
    return max(computed, fetch(gap - head) if head < gap else 0.0)


def every_head(gap, page) -> list[int]:
    return [*range(0, gap, page), gap]


@given(computing(), loading(), st.integers(0, 8192), st.integers(1, 3000), PAGES, LEAD)
def test_no_split_is_better(compute, fetch, prefix, gap, page, lead) -> None:
    split = best_split(prefix, gap, compute=compute, fetch=fetch, page=page, lead=lead)
    least = min(done(prefix, gap, head, compute, fetch, lead) for head in every_head(gap, page))
    assert split.seconds == pytest.approx(least, rel=1e-12)
    assert split.seconds <= min(lead + compute(prefix, gap), fetch(gap))
    assert split.head % page == 0 or split.head == gap


@given(computing(), loading(), st.integers(1, 3000), st.integers(1, 500), PAGES)
def test_more_to_restore_never_takes_less(compute, fetch, gap, more, page) -> None:
    def seconds(tokens: int) -> float:
        return best_split(0, tokens, compute=compute, fetch=fetch, page=page).seconds

    # By whole pages: a gap that ends within a page has one split more.
    gap, more = gap * page, more * page
    assert seconds(gap) <= seconds(gap + more) * (1 + 1e-12)


def test_the_linear_meeting_point_is_beaten() -> None:
    # llama3-8b on an H200, about: 21 us per token, and twice that for 32k keys.
    compute = in_chunks(lambda n, prefix: 0.002 + 21e-6 * n + 0.65e-9 * n * (prefix + n / 2), 4096)
    gap, per_token = 32768, 38e-6

    def fetch(tokens: int) -> float:
        return per_token * tokens

    tc, tio = compute(0, gap), fetch(gap)
    linear = round(gap * tio / (tc + tio) / 64) * 64
    split = best_split(0, gap, compute=compute, fetch=fetch, page=64)
    assert split.head > linear
    assert split.seconds < 0.97 * done(0, gap, linear, compute, fetch)
    assert split.seconds < tc * tio / (tc + tio)


@pytest.mark.parametrize(
    ("latency", "step", "head"),
    [
        (0.0, 0.1, 0),  # the shortest step takes longer than all of the load
        (0.1, 0.0, 512),  # the link's latency is longer than all of the computing
        (0.0, 0.0, 256),
    ],
)
def test_fixed_costs_leave_a_short_prefix_to_one_source(latency, step, head) -> None:
    split = best_split(
        0,
        512,
        compute=in_chunks(lambda n, prefix: step + 1e-5 * n, 8192),
        fetch=lambda tokens: latency + 1e-5 * tokens if tokens else 0.0,
        page=64,
    )
    assert split.head == head


def test_nothing_is_missing() -> None:
    assert best_split(5, 0, compute=lambda p, n: 1.0, fetch=lambda n: 1.0, page=1).seconds == 0.0
    assert head_tokens(5, 0, compute=lambda p, n: 1.0, fetch=lambda n: 1.0, page=1) == 0


@given(computing(), loading(), st.integers(0, 8192), st.integers(1, 3000), PAGES, LEAD)
def test_the_next_chunk_goes_as_far_as_the_best_split(
    compute, fetch, prefix, gap, page, lead
) -> None:
    head = head_tokens(prefix, gap, compute=compute, fetch=fetch, page=page, lead=lead)
    assert head % page == 0 or head == gap
    within = done(prefix, gap, head, compute, fetch, lead)
    # What a page of it takes at most, to which side ever it is rounded.
    best = best_split(prefix, gap, compute=compute, fetch=fetch, page=page, lead=lead).seconds
    more = min(head + page, gap)
    one = max(
        compute(prefix, more) - compute(prefix, max(head - page, 0)),
        fetch(gap) - fetch(gap - min(page, gap)),
    )
    assert within <= best + one + 1e-12
    assert within <= fetch(gap)  # never worse than to wait


@given(computing(), st.integers(1, 3000), PAGES, LEAD)
def test_with_a_dead_link_the_head_goes_all_the_way(compute, gap, page, lead) -> None:
    def dead(tokens: int) -> float:
        return math.inf

    assert head_tokens(0, gap, compute=compute, fetch=dead, page=page, lead=lead, wait=1.0) == gap


@given(computing(), st.integers(64, 3000), PAGES, LEAD, st.floats(1e-6, 1e-3), st.floats(1.0, 9.0))
def test_a_slower_link_never_shortens_the_head(compute, gap, page, lead, token, slower) -> None:
    heads = [
        head_tokens(0, gap, compute=compute, fetch=lambda n, r=rate: n * r, page=page, lead=lead)
        for rate in (token, token * slower)
    ]
    # By a page at most: the last one may end after the faster link has brought all.
    assert heads[0] <= heads[1] + page


def test_it_rather_waits_than_to_start_a_chunk() -> None:
    def head(**more) -> int:
        return head_tokens(
            0, 640, compute=lambda p, n: n * 1e-5, fetch=lambda n: n * 1e-5, page=64, **more
        )

    assert head() == 320
    assert head(wait=0.0065) == 0
    assert head(wait=0.0063) == 320
    assert head(lead=0.0065) == 0  # the step under way ends after the tail has arrived
    assert head(lead=0.0032) == 128  # (6.4 - 3.2) / 2 ms of it, in whole pages


def test_a_page_that_would_end_last_is_left_to_the_link() -> None:
    def head(page_seconds: float) -> int:
        return head_tokens(
            0,
            128,
            compute=lambda p, n: n / 64 * page_seconds,
            fetch=lambda n: n / 64 * 0.010,
            page=64,
        )

    assert head(0.009) == 64  # with a second page done after 18 ms, so after 10
    assert head(0.011) == 64
    assert head(0.019) == 64
    assert head(0.021) == 0


def play(gap, arrivals, compute, *, chunk=512, page=64):
    """Compute chunks while `arrivals(now)` says how many tokens of the tail are there by then.

    Returns (heads that were asked for, when both have met).
    """
    now, head, asked = 0.0, 0, []
    while True:
        landed, rate = arrivals(now)
        left = gap - head - landed
        if left <= 0:
            return asked, now
        fetch = (lambda n, r=rate: n / r) if rate else (lambda n: math.inf)
        tokens = head_tokens(head, left, compute=compute, fetch=fetch, page=page)
        asked.append(tokens)
        if tokens == 0:
            now += left / rate
            continue
        tokens = min(tokens, chunk)
        now += compute(head, tokens)
        head += tokens


def test_decisions_follow_the_link() -> None:
    compute = in_chunks(lambda n, prefix: 20e-6 * n, 512)
    gap = 8192

    def steady(now: float) -> tuple[int, float]:
        return int(now * 50_000) // 64 * 64, 50_000.0

    def dies(now: float) -> tuple[int, float]:
        return int(min(now, 0.02) * 50_000) // 64 * 64, 50_000.0 if now < 0.02 else 0.0

    def late(now: float) -> tuple[int, float]:
        return int(max(now - 0.05, 0) * 50_000) // 64 * 64, 50_000.0 if now > 0.05 else 1e-9

    def faster(now: float) -> tuple[int, float]:
        landed = int(now * 50_000) if now < 0.02 else int(1000 + (now - 0.02) * 500_000)
        return landed // 64 * 64, 50_000.0 if now < 0.02 else 500_000.0

    whole = compute(0, gap)
    asked, end = play(gap, steady, compute)
    assert end <= whole / 2 * 1.05
    asked, end = play(gap, dies, compute)
    assert end == pytest.approx(compute(0, gap - 960))  # what has landed by then is not computed
    asked, end = play(gap, late, compute)
    assert end <= 0.05 + (whole - 0.05) / 2 * 1.1
    asked, end = play(gap, faster, compute)
    assert asked[0] > 4000 > asked[-1]
    assert end <= 0.05


def test_a_step_of_its_own_may_cost_the_suffix_more_than_the_split_saves() -> None:
    def alone(suffix: int, *, step: float, missing: int = 2048, gain: float = 0.0) -> bool:
        return alone_is_sooner(
            0,
            missing,
            2048,
            suffix,
            compute=in_chunks(lambda n, prefix: max(step, 20e-6 * n), 8192),
            fetch=lambda n: n * 100e-6,
            page=64,
            gain=gain,
        )

    # 41 ms of computing and 205 ms of loading: the split saves 7 ms.
    assert not alone(64, step=0.001)
    assert alone(64, step=0.010)
    assert alone(64, step=0.001, gain=0.010)  # which is less than is asked for
    assert not alone(0, step=0.010)  # nothing follows
    assert not alone(64, step=0.001, missing=0)  # all has landed
    assert alone(64, step=0.050, missing=64)


@given(computing(), st.integers(0, 8192), st.integers(0, 3000), PAGES, st.floats(0.0, 0.5))
def test_a_head_fits_into_the_time(compute, prefix, tokens, page, seconds) -> None:
    fits = tokens_within(prefix, tokens, seconds, compute=compute, page=page)
    assert 0 <= fits <= tokens
    assert fits % page == 0 or fits == tokens
    assert fits == 0 or compute(prefix, fits) <= seconds
    if fits < tokens:
        assert compute(prefix, min(fits + page, tokens)) > seconds


@pytest.mark.parametrize("page", [0, -1])
def test_a_page_has_a_token_at_least(page) -> None:
    for ask in (head_tokens, best_split):
        with pytest.raises(ValueError, match=f"page is {page}; allowed is 1 or more"):
            ask(0, 1, compute=lambda p, n: 1.0, fetch=lambda n: 1.0, page=page)
    with pytest.raises(ValueError, match="chunk is 0; allowed is 1 or more"):
        in_chunks(lambda n, prefix: 1.0, 0)
