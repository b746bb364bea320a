"""Which step the time between two iterations is charged to."""

from __future__ import annotations

import math

import pytest

from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.costs.steps import REFIT_SECONDS, StepTimer, Work

DECODE = Work(decoding=4, context=1000)
PREFILL = Work(tokens=100, attention=5000.0)


def iterate(timer: StepTimer, *steps: tuple[float, Work | None]) -> None:
    """Iterations: each begins at its time and launches its work."""
    for now, work in steps:
        timer.begin(now)
        timer.launch(work)


def test_nothing_is_known_before_the_first_step() -> None:
    timer = StepTimer(lag=0)
    assert timer.costs() == StepCosts()
    assert (timer.last_prefill_end, timer.last_prefill_seconds) == (-math.inf, 0.0)
    assert math.isnan(timer.throughput())


def test_without_lag_an_iteration_pays_for_the_work_it_launched() -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (0.0, PREFILL), (0.5, DECODE), (0.6, None))
    costs = timer.costs()
    assert costs.prefill_seconds(100) == pytest.approx(0.5)
    assert costs.decode_seconds(4, 1000) == pytest.approx(0.1)


def test_with_overlap_an_iteration_pays_for_the_work_before() -> None:
    # The iteration from 0.5 to 0.6 launches the decode and waits for the prefill.
    timer = StepTimer(lag=1)
    iterate(timer, (0.0, None), (0.4, PREFILL), (0.5, DECODE), (0.6, DECODE), (1.4, None))
    costs = timer.costs()
    assert costs.prefill_seconds(100) == pytest.approx(0.1)
    assert costs.decode_seconds(4, 1000) == pytest.approx(0.8)
    assert (timer.last_prefill_end, timer.last_prefill_seconds) == (0.6, pytest.approx(0.1))


def test_idle_iterations_are_charged_to_no_step() -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (0.0, DECODE), (0.1, None), (50.0, DECODE), (50.1, None), (99.0, None))
    assert timer.costs().decode_seconds(4, 1000) == pytest.approx(0.1)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_pause_of_the_engine_is_no_steps_time(lag) -> None:
    timer = StepTimer(lag=lag)
    steps = ((0.0, DECODE), (0.1, DECODE), (0.2, DECODE), (0.3, PREFILL))
    iterate(timer, *steps)
    timer.interrupted()
    iterate(timer, (60.0, DECODE), (60.1, DECODE), (60.2, None))
    assert timer.costs().decode_seconds(4, 1000) == pytest.approx(0.1)
    assert timer.last_prefill_seconds < 1.0


def test_the_first_iteration_has_no_duration() -> None:
    timer = StepTimer(lag=0)
    timer.launch(DECODE)
    timer.begin(123.0)
    assert timer.costs() == StepCosts()


@pytest.mark.parametrize("later", [1.0, 0.5])
def test_a_clock_that_stands_still_or_runs_backwards_teaches_nothing(later) -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (1.0, DECODE), (later, None))
    assert timer.costs() == StepCosts()


def test_a_mixed_step_is_a_prefill_and_what_the_decoding_rows_add() -> None:
    timer = StepTimer(lag=0)
    now = 0.0
    # Decoding: 10 ms, and 1 ms per row.
    for rows in (1, 2, 4, 8) * 10:
        iterate(timer, (now, Work(decoding=rows)), (now + 0.010 + 0.001 * rows, None))
        now += 10.0
    iterate(timer, (now, Work(decoding=16, tokens=100)), (now + 0.3, None), (now + 1.0, None))
    assert timer.costs().prefill_seconds(100) == pytest.approx(0.284, rel=1e-3)
    assert timer.costs().decode_seconds(4, 0) == pytest.approx(0.014, rel=1e-3)
    assert timer.last_prefill_seconds == pytest.approx(0.3)


def test_a_mixed_step_teaches_nothing_while_decoding_is_unknown() -> None:
    timer = StepTimer(lag=0)
    mixed = Work(decoding=4, context=100, tokens=100, attention=5000.0)
    iterate(timer, (0.0, mixed), (0.3, None))
    assert timer.costs() == StepCosts()
    assert (timer.last_prefill_end, timer.last_prefill_seconds) == (0.3, pytest.approx(0.3))


def test_decodes_are_no_prefills() -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (0.0, DECODE), (0.3, None))
    assert timer.last_prefill_end == -math.inf


@pytest.fixture
def prefilling() -> StepTimer:
    """A timer that knows prefills: 1 ms a token."""
    timer = StepTimer(lag=0)
    for tokens in range(100, 1100, 100):
        iterate(timer, (tokens, Work(tokens=tokens)), (tokens * 1.001, None))
    return timer


def test_a_load_that_a_step_waits_for_takes_the_steps_time(prefilling) -> None:
    # The 100 tokens take 0.1 s, beside the load.
    iterate(prefilling, (2000.0, Work(tokens=100, loaded=4000)), (2000.7, None), (2001.0, None))
    assert prefilling.costs().load_seconds(4000) == pytest.approx(0.7, rel=1e-3)
    assert prefilling.costs().prefill_seconds(100) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize(("seconds", "known"), [(0.149, False), (0.151, True)])
def test_a_load_that_hides_behind_computing_teaches_nothing(prefilling, seconds, known) -> None:
    work = Work(tokens=100, loaded=4000)
    iterate(prefilling, (2000.0, work), (2000.0 + seconds, None), (2001.0, None))
    assert (prefilling.costs().load is not None) is known


def test_but_a_load_seen_to_hide_where_it_should_not_is_cheaper(prefilling) -> None:
    iterate(prefilling, (2000.0, Work(tokens=100, loaded=4000)), (2000.7, None), (2001.0, None))
    for number in range(40):
        now = 2001.0 + number
        iterate(prefilling, (now, Work(tokens=100, loaded=4000)), (now + 0.1, None))
    iterate(prefilling, (2042.0, None))
    assert prefilling.costs().load_seconds(4000) < 0.15


def test_a_cold_server_does_not_take_prefills_for_free() -> None:
    timer = StepTimer(lag=0)
    now = 0.0
    for step in range(8):  # a start-up: one row, a few tokens, and noise of 0.1 ms a step
        work = Work(decoding=1, context=4 + step)
        iterate(timer, (now, work), (now + 0.020 + 1e-4 * step, None))
        now += 10.0
    for tokens in (1000, 4000):  # 0.1 ms a token
        iterate(timer, (now, Work(tokens=tokens)), (now + 1e-4 * tokens, None))
        now += 10.0
    for _ in range(40):  # 0.02 s of them for twenty rows, whose context was never seen
        mixed = Work(decoding=20, context=10_000, tokens=256)
        iterate(timer, (now, mixed), (now + 0.0456, None))
        now += 10.0
    assert timer.costs().prefill_seconds(1000) == pytest.approx(0.1, rel=0.05)


def test_the_first_large_decode_step_does_not_make_prefills_free() -> None:
    """The steps behind it are not judged by a fit that is older than it."""
    timer, now = StepTimer(lag=0), 0.0

    def step(work: Work, seconds: float) -> None:
        nonlocal now
        iterate(timer, (now, work))
        timer.costs()  # as the policy asks in every pass
        now += seconds

    for count in range(8):  # a start-up, whose noise becomes a price of 5 us per token of context
        step(Work(decoding=1, context=4 + count), 0.0047 + 5e-6 * count)
    for _ in range(3):
        step(Work(tokens=8192, attention=4e6), 0.18)
    step(Work(decoding=24, context=24_700), 0.0057)
    for _ in range(5):
        step(Work(decoding=25, context=25_000, tokens=2048, attention=1e6), 0.046)
    timer.begin(now + REFIT_SECONDS)
    assert timer.costs().prefill_seconds(2048) == pytest.approx(0.045, rel=0.05)


def test_resumes_from_the_device_do_not_wash_out_what_prefills_cost() -> None:
    timer = StepTimer(lag=0)
    now = 0.0
    for rows in (1, 2, 4, 8) * 10:  # decoding: 10 ms, and 1 ms per row
        iterate(timer, (now, Work(decoding=rows)), (now + 0.010 + 0.001 * rows, None))
        now += 10.0
    for tokens in (100, 200, 400) * 10:  # prefills: 10 ms, and 1 ms a token
        iterate(timer, (now, Work(tokens=tokens)), (now + 0.010 + 0.001 * tokens, None))
        now += 10.0
    for _ in range(2000):  # a token beside eight rows, a little faster than the model says
        resumed = Work(decoding=8, tokens=1, attention=500.0)
        iterate(timer, (now, resumed), (now + 0.016, None))
        now += 0.1
    assert timer.costs().prefill_seconds(1000) == pytest.approx(1.01, rel=0.02)


def test_a_price_above_what_steps_take_is_corrected_beside_a_prefill_too(prefilling) -> None:
    # What was recomputed for the sake of that price is in the same step as what is loaded.
    iterate(prefilling, (2000.0, Work(tokens=1, loaded=1000)), (2005.0, None), (2005.5, None))
    assert prefilling.costs().load_seconds(1000) == pytest.approx(5.0, rel=0.01)
    beside = Work(tokens=500, loaded=1000)
    iterate(prefilling, (2006.0, beside), (2006.5, None), (2007.0, None))
    assert prefilling.costs().load_seconds(1000) < 0.6


@pytest.mark.parametrize(("queued", "known"), [(False, True), (True, False)])
def test_a_load_behind_another_one_is_not_as_long_as_both(prefilling, queued, known) -> None:
    # A resume with 224 tokens to load waits 0.5 s, for what came before it on the link.
    work = Work(tokens=5, loaded=224, queued=queued)
    iterate(prefilling, (2000.0, work), (2000.5, None), (2001.0, None))
    assert (prefilling.costs().load is not None) is known


def test_a_load_behind_another_one_still_bounds_the_price(prefilling) -> None:
    iterate(prefilling, (2000.0, Work(tokens=1, loaded=1000)), (2005.0, None), (2005.5, None))
    behind = Work(tokens=1, loaded=1000, queued=True)
    iterate(prefilling, (2006.0, behind), (2006.5, None), (2007.0, None))
    assert prefilling.costs().load_seconds(1000) < 0.6


@pytest.mark.parametrize(("seconds", "known"), [(0.040, False), (0.045, True)])
def test_what_the_model_misses_is_not_the_loads(seconds, known) -> None:
    timer = StepTimer(lag=0)
    now = 0.0
    for rows in (1, 2, 4, 8) * 10:  # decoding: 10 ms, and 1 ms per row
        iterate(timer, (now, Work(decoding=rows)), (now + 0.010 + 0.001 * rows, None))
        now += 10.0
    # Since then a step takes twice as long, with four rows 28 ms.
    iterate(timer, (now, Work(decoding=4)), (now + 0.028, None))
    resume = Work(decoding=3, tokens=1, attention=4000.5, loaded=4000)
    iterate(timer, (now + 1.0, resume), (now + 1.0 + seconds, None), (now + 2.0, None))
    assert (timer.costs().load is not None) is known


def test_a_price_that_no_step_checks_is_forgotten() -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (0.0, Work(tokens=100)), (0.1, Work(tokens=1, loaded=4000)), (5.0, None))
    timer.begin(5.5)
    assert timer.costs().load_seconds(4000) > 4.0
    iterate(timer, (14.0, None))
    assert timer.costs().load is not None
    iterate(timer, (16.0, None))
    assert timer.costs().load is None
    iterate(timer, (20.0, Work(tokens=1, loaded=4000)), (20.5, None), (21.0, None))
    assert timer.costs().load_seconds(4000) == pytest.approx(0.5, rel=0.05)


def test_a_short_load_beside_a_long_prefill_teaches_nothing() -> None:
    timer = StepTimer(lag=0)
    for tokens in range(100, 1100, 100):
        iterate(timer, (tokens, Work(tokens=tokens)), (tokens * 1.001, None))
    # One token of a shared prefix, and noise of 0.5 s: a load of 1000 would seem to take 500 s.
    iterate(timer, (2000.0, Work(tokens=100, loaded=1)), (2000.6, None), (2001.0, None))
    assert timer.costs().load is None


def test_loads_do_not_teach_the_prefill_model() -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (0.0, Work(tokens=100, attention=5000.0, loaded=4000)), (0.7, None))
    assert timer.costs().prefill is None


def test_a_fit_is_kept_for_a_while() -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (0.0, DECODE), (0.1, DECODE))
    first = timer.costs()
    iterate(timer, (0.1 + 0.5 * REFIT_SECONDS, DECODE))
    assert timer.costs() is first
    iterate(timer, (0.1 + 1.5 * REFIT_SECONDS, None))
    assert timer.costs() is not first


# ---- reading while crowded ----------------------------------------------------------


def crowded(**work) -> Work:
    return Work(crowded=True, **work)


def test_the_reading_rate_is_context_over_time_while_crowded() -> None:
    timer = StepTimer(lag=0)
    now = 0.0
    for _ in range(400):
        iterate(timer, (now, crowded(decoding=10, context=20_000)), (now + 0.02, None))
        # What runs while all streams fit says nothing about an engine at its limit.
        iterate(timer, (now + 0.5, Work(decoding=1, context=10)), (now + 0.6, None))
        now += 1.0
    assert timer.kv_rate() == pytest.approx(1_000_000.0)


def test_the_reading_rate_is_unknown_before_five_seconds() -> None:
    timer = StepTimer(lag=0)
    assert math.isnan(timer.kv_rate())
    iterate(timer, (0.0, crowded(decoding=10, context=1000)), (4.9, None))
    assert math.isnan(timer.kv_rate())
    iterate(timer, (5.0, crowded(decoding=10, context=1000)), (6.5, None))
    assert timer.kv_rate() > 0.0


def test_prefills_are_not_a_loss_but_what_a_resume_takes_is() -> None:
    timer = StepTimer(lag=0)
    now = 0.0
    for rows in (1, 2, 4, 8) * 10:  # decoding: 10 ms, and 1 ms per row
        iterate(timer, (now, Work(decoding=rows)), (now + 0.010 + 0.001 * rows, None))
        now += 10.0
    for tokens in (100, 200, 400) * 10:  # prefills: 10 ms, and 1 ms a token
        iterate(timer, (now, Work(tokens=tokens)), (now + 0.010 + 0.001 * tokens, None))
        now += 10.0
    mixed = crowded(decoding=10, context=10_000, tokens=300, attention=1.0)
    resume = crowded(decoding=10, context=10_000, tokens=1, attention=1.0, loaded=4000)
    for _ in range(100):
        iterate(timer, (now, mixed), (now + 0.32, None))  # 0.02 s of decoding
        iterate(timer, (now + 1.0, resume), (now + 1.121, None))  # 0.02 s, and 0.1 s of loading
        now += 10.0
    assert timer.kv_rate() == pytest.approx(20_000 / 0.14, rel=0.02)


def test_the_share_of_prefills_is_that_of_the_time_while_crowded(prefilling) -> None:
    now = 2000.0
    assert prefilling.prefill_share() == 0.0
    for _ in range(100):  # 0.3 s of prefill, 0.1 s of decoding
        iterate(prefilling, (now, crowded(tokens=300)), (now + 0.3, None))
        iterate(prefilling, (now + 1.0, crowded(decoding=1, context=10)), (now + 1.1, None))
        iterate(prefilling, (now + 2.0, Work(decoding=1)), (now + 2.5, None))  # no stream is paused
        now += 3.0
    assert prefilling.prefill_share() == pytest.approx(0.75, rel=0.02)


# ---- throughput ---------------------------------------------------------------------


def test_throughput_is_tokens_over_the_window() -> None:
    timer = StepTimer(lag=0)
    for step in range(11):
        timer.produced(0.2 * step, 30)
    # 2 s from the first delivery to the last, and the first belongs to the time before.
    assert timer.throughput() == pytest.approx(150.0)


@pytest.mark.parametrize(("span", "known"), [(0.9, False), (1.1, True)])
def test_throughput_needs_half_a_window(span, known) -> None:
    timer = StepTimer(lag=0)
    timer.produced(5.0, 10)
    assert math.isnan(timer.throughput())
    timer.produced(5.0 + span, 10)
    assert math.isnan(timer.throughput()) is not known


def test_throughput_forgets_what_left_the_window() -> None:
    timer = StepTimer(lag=0)
    for step in range(50):
        timer.produced(0.1 * step, 1000)
    for step in range(50, 80):
        timer.produced(0.1 * step, 10)
    assert timer.throughput() == pytest.approx(100.0, rel=1e-6)


def test_an_engine_that_stopped_has_no_throughput() -> None:
    timer = StepTimer(lag=0)
    for step in range(20):
        timer.produced(0.1 * step, 10)
    timer.produced(10.0, 0)
    assert math.isnan(timer.throughput())


def test_an_earlier_load_is_not_counted_again() -> None:
    from types import SimpleNamespace

    from tokenflow_sgl.engine.batch_work import loaded_tokens

    assert loaded_tokens(SimpleNamespace(host_loaded_length=300, host_hit_length=300)) == 300
    assert loaded_tokens(SimpleNamespace(host_loaded_length=300, host_hit_length=0)) == 0


def test_steps_on_a_clock_that_stands_still_are_measured_together() -> None:
    """Four decode steps, of which only the last ends at a new time."""
    timer = StepTimer(lag=0)
    wider = Work(decoding=8, context=3000)
    iterate(timer, (0.0, DECODE), (0.0, wider), (0.0, DECODE), (0.0, wider), (0.4, None))
    assert timer.costs().decode_seconds(6, 2000) == pytest.approx(0.1)


def test_a_prefill_among_them_teaches_nothing() -> None:
    timer = StepTimer(lag=0)
    iterate(timer, (0.0, DECODE), (0.0, PREFILL), (0.4, None))
    assert timer.costs() == StepCosts()
    iterate(timer, (0.4, DECODE), (0.8, None))
    assert timer.costs().decode_seconds(4, 1000) == pytest.approx(0.4)


def test_what_decode_steps_accept_is_learned() -> None:
    timer = StepTimer(lag=0, most=4)
    assert timer.tokens_per_step == timer.costs().tokens_per_step == 1.0
    for number in range(200):
        timer.begin(0.1 * number)
        timer.accepted(timer.decoded, 10 if timer.decoded else 99)
        timer.launch(PREFILL if number % 10 == 0 else DECODE)
    assert timer.tokens_per_step == pytest.approx(2.5)
    assert timer.costs().tokens_per_step == pytest.approx(2.5)


def test_newer_steps_count_more_than_older_ones() -> None:
    timer = StepTimer(lag=0, most=4)
    for accepted in (1, 3):
        for _ in range(200):
            timer.accepted(100, 100 * accepted)
    assert timer.tokens_per_step == pytest.approx(3.0, abs=0.05)


@pytest.mark.parametrize(("most", "tokens", "per_step"), [(1, 9, 1.0), (4, 99, 4.0), (4, 3, 1.0)])
def test_a_step_gives_a_stream_at_least_a_token_and_at_most_all_drafts(
    most, tokens, per_step
) -> None:
    """A stream that ends in the middle of a step gets less, and counts as if it had not."""
    timer = StepTimer(lag=0, most=most)
    timer.accepted(8, tokens * 8 if tokens > 4 else tokens)
    assert timer.tokens_per_step == per_step
