"""The demand test, with numbers worked by hand."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from admitting import AS_MODELLED, COSTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.contract.needs import kv_promised
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.admission import CONSIDERED, admissible

FREE_OF_CHARGE = StepCosts()

pytestmark = pytest.mark.usefixtures("one_margin")


def test_no_stream_waits(make_state, make_stream) -> None:
    assert admissible(make_state([make_stream()]), WorkingSetConfig()).join.tolist() == []


@pytest.mark.parametrize(("eta", "expected"), [(1.0, []), (1.27, []), (1.28, [1])])
def test_demand_is_compared_with_eta_of_the_time(joins, member, newcomer, eta, expected) -> None:
    assert joins([member(), newcomer()], eta=eta) == expected


def test_eta_scales_what_a_single_stream_may_ask_for(joins, member, newcomer) -> None:
    # A member that has nothing left to ask leaves the newcomer's own 0.636.
    idle = member(expected=100.0)
    assert joins([idle, newcomer()], eta=0.63) == []
    assert joins([idle, newcomer()], eta=0.64) == [1]


def test_buffers_delay_demand(joins, member, newcomer) -> None:
    # With 80 s of slack the member asks from h = 80 on: at 110 s for 300 * 350e-4 = 10.5,
    # at 150 s for 700 * 550e-4 = 38.5, at 210 s for 70. With the newcomer's own at most
    # (10.5 + 70) / 110 = 0.73.
    assert joins([member(slack=80.0), newcomer()], eta=0.74) == [1]
    assert joins([member(slack=80.0), newcomer()], eta=0.72) == []
    # 10 s are not enough: all 1000 tokens are due within 110 s again.
    assert joins([member(slack=10.0), newcomer()]) == []


def test_a_waiting_member_has_no_buffer_whatever_its_next_due(joins, member, newcomer) -> None:
    promised = newcomer(slack=80.0, admitted=True)
    assert joins([promised, newcomer()], eta=1.27) == []
    assert joins([promised, newcomer()], eta=1.28) == [1]


def test_short_outputs_stop_asking(joins, member, newcomer) -> None:
    # 40 tokens to come cost 40 * 220e-4 = 0.88 s once: (0.88 + 70) / 110 = 0.6444.
    assert joins([member(expected=140.0), newcomer()], eta=0.645) == [1]
    assert joins([member(expected=140.0), newcomer()], eta=0.644) == []


def test_prefills_count_at_the_first_horizon(joins, member, newcomer) -> None:
    # 200 prompt tokens at 5 ms take 1 s; 1 + 0.42 = 1.42 of 2 s.
    costs = StepCosts(decode=(0.1, 0.0, 0.0), prefill=(0.0, 0.005, 0.0))
    idle = member(expected=100.0)
    assert joins([idle, newcomer()], costs, eta=0.72) == [1]
    assert joins([idle, newcomer()], costs, eta=0.70) == []
    # The prefill of an admitted stream that still waits is due as well: 2.84 of 2 s.
    assert joins([newcomer(admitted=True), newcomer()], costs, eta=1.41) == []
    assert joins([newcomer(admitted=True), newcomer()], costs, eta=1.43) == [1]


def test_of_a_prompt_only_what_is_not_cached_counts(joins, member, newcomer) -> None:
    # As above, with half of each prompt cached: half a second each.
    costs = StepCosts(decode=(0.1, 0.0, 0.0), prefill=(0.0, 0.005, 0.0))
    half = {"on_device": 100, "on_host": 100}
    assert joins([member(expected=100.0), newcomer(**half)], costs, eta=0.70) == [1]
    assert joins([newcomer(admitted=True, **half), newcomer()], costs, eta=1.41) == [1]


# What the engine reads while it is crowded decides what a token costs, within reason.
@pytest.mark.parametrize(
    ("kv_rate", "needed"),
    [
        (math.nan, 1.5273),  # not measured yet: a fifth above the model's 140 / 110
        (8_000.0, 1.591),  # a quarter slower than modelled
        (20_000.0, 1.2727),  # faster than modelled: memory was not full
        (100.0, 2.5455),  # absurd: twice the model's
    ],
)
def test_a_token_costs_what_was_measured(joins, member, newcomer, kv_rate, needed) -> None:
    rows = [member(), newcomer()]
    assert joins(rows, kv_rate=kv_rate, eta=needed + 0.001) == [1]
    assert joins(rows, kv_rate=kv_rate, eta=needed - 0.001) == []


def test_no_reader_asks_for_more_than_one_stream_can_get(joins, member, newcomer) -> None:
    # An engine that decodes each stream at 10 tokens/s: an agent that reads 1000 gets these.
    assert joins([member(rate=1000.0), newcomer(rate=1000.0)], eta=1.27) == []
    assert joins([member(rate=1000.0), newcomer(rate=1000.0)], eta=1.28) == [1]


# Ten readers of 5 tokens/s with 10 tokens to come share 1000 tokens of memory. As much as the
# hysteresis, 3 s, should be in stock, or a tenth of what a stream has been read for by then.
@pytest.mark.parametrize(
    ("generated", "at_2", "at_5"), [(100, 2.2, 2.5), (200, 3.0, 3.0), (1, 0.22, 0.52)]
)
@pytest.mark.parametrize("slack", [0.0, 1.0, 1.5, 2.0])
def test_streams_that_take_turns_ask_for_a_stock(
    joins, make_stream, generated, at_2, at_5, slack
) -> None:
    reader = make_stream(
        **{"rate": 5.0, "slack": slack, "prompt": 300 - generated},
        **{"generated": generated, "expected": generated + 10.0},
    )

    def share(horizon, stock):
        tokens = min(5.0 * (horizon + stock - slack), 10.0)
        return 10 * tokens * (300 + tokens / 2) * 1e-4 / horizon

    rows = [*([reader] * 10), make_stream(Phase.WAITING, prompt=1, expected=1.0)]
    needed = max(share(2.0, at_2), share(5.0, at_5))
    assert joins(rows, hysteresis=3.0, eta=needed + 0.001) == [10]
    assert joins(rows, hysteresis=3.0, eta=needed - 0.001) == []


@pytest.mark.parametrize(("eta", "joined"), [(0.374, []), (0.376, [30])])
def test_streams_that_all_fit_need_no_stock(make_state, make_stream, eta, joined) -> None:
    # 30 readers of 200 tokens, 100 to come at 5/s: 30 * 100 * 250e-5 = 7.5 s of the first 20.
    reader = make_stream(slack=0.0, rate=5.0, expected=200.0)
    rows = [*([reader] * 30), make_stream(Phase.WAITING, prompt=1, expected=1.0)]
    state = make_state(rows, total=10_000, costs=COSTS, kv_rate=10 * AS_MODELLED)
    assert admissible(state, WorkingSetConfig(eta=eta)).join.tolist() == joined


def test_no_stream_overtakes_the_first_that_does_not_fit(joins, member, newcomer) -> None:
    small = newcomer(expected=5.0)
    assert joins([member(), small]) == [1]
    assert joins([member(), newcomer(), small]) == []
    assert joins([member(), small, newcomer(), small]) == [1]


def test_unknown_costs_leave_the_decision_to_memory(joins, member, newcomer) -> None:
    rows = [member(), *(newcomer() for _ in range(5))]
    assert joins(rows, FREE_OF_CHARGE) == [1, 2, 3, 4, 5]


# A newcomer is promised 100 + 0.6 * 500 = 400 tokens, the running stream holds 200 and is
# promised 0.6 * 300 = 180 more.
@pytest.mark.parametrize(
    ("host", "fill", "running", "count"),
    [
        (0, 1.0, False, 2),  # 800 of 1000
        (1200, 1.0, False, 3),  # 1200 of 1500
        (1280, 1.0, False, 4),  # 1600 of 1600
        (1279, 1.0, False, 3),
        (1280, 0.9, False, 3),  # 1200 of 1440
        (1200, 1.0, True, 2),  # 380 + 800 of 1500
        (1264, 1.0, True, 3),  # 380 + 1200 of 1580
        (1263, 1.0, True, 2),
        (500, 1.0, False, 2),  # no more than the device has: running streams' copies are there
        (0, 1.0, True, 2),  # 380 + 800 of 1180, of which the one that runs does not hold 180
        (0, 0.99, True, 1),
        (4000, 0.32, False, 4),  # 1600 of 1600, of device and host
        (4000, 0.31, False, 3),
    ],
)
def test_memory_counts_device_and_host(make_state, make_stream, host, fill, running, count) -> None:
    # A host that is small keeps a quarter more than it holds.
    rows = [make_stream()] if running else []
    rows += [make_stream(Phase.WAITING, prompt=100, expected=500.0)] * 6
    state = make_state(rows, total=1000, host=host, costs=FREE_OF_CHARGE)
    joined = admissible(state, WorkingSetConfig(fill=fill)).join.tolist()
    first = len(rows) - 6
    assert joined == list(range(first, first + count))


@pytest.mark.parametrize(
    ("host", "mirrored", "growth", "promised"),
    [
        (0, True, 0.0, 1000),
        (0, True, 300.0, 1300),
        (0, True, 900.0, 1500),  # so much is computed again that it is worth no more
        (1000, True, 100.0, 1250),  # the host keeps more than that
        (1000, True, 400.0, 1400),
        (2000, True, 900.0, 2500),
        (400, False, 900.0, 1400),  # nothing is computed again where the host has all copies
    ],
)
def test_what_is_still_to_grow_is_promised_beyond_the_device(
    make_state, host, mirrored, growth, promised
) -> None:
    memory = make_state([], total=1000, host=host).memory
    assert kv_promised(dataclasses.replace(memory, mirrored=mirrored), growth) == promised


@pytest.mark.parametrize(("host", "count"), [(600, 4), (599, 3), (0, 2)])
def test_a_host_without_copies_of_the_device_counts_as_a_whole(
    make_state, make_stream, host, count
) -> None:
    rows = [make_stream(Phase.WAITING, prompt=100, expected=500.0)] * 6
    state = make_state(rows, total=1000, host=host, costs=FREE_OF_CHARGE)
    state = dataclasses.replace(state, memory=dataclasses.replace(state.memory, mirrored=False))
    joined = admissible(state, WorkingSetConfig(fill=1.0)).join.tolist()
    assert joined == list(range(count))


def test_one_is_admitted_to_an_empty_working_set_whatever_it_asks(joins, newcomer) -> None:
    giant = newcomer(prompt=10**6, expected=10.0**6)
    assert joins([giant, giant]) == [0]
    assert joins([newcomer(rate=1000.0, expected=1e5)], eta=0.1) == [0]


def test_a_working_set_with_one_member_admits_no_giant(joins, member, newcomer) -> None:
    giant = newcomer(prompt=10**6, expected=10.0**6)
    assert joins([member(slack=1000.0), giant]) == []
    assert joins([newcomer(admitted=True, expected=1.0), giant]) == []


def test_an_admitted_stream_is_not_admitted_again(joins, newcomer) -> None:
    rows = [newcomer(expected=5.0, admitted=True), newcomer(expected=5.0)]
    assert joins(rows) == [1]


def test_a_pass_looks_at_the_first_arrivals_only(make_state, make_stream) -> None:
    rows = [make_stream(Phase.WAITING, prompt=1, expected=1.0)] * (CONSIDERED + 10)
    joined = admissible(make_state(rows), WorkingSetConfig()).join.tolist()
    assert joined == list(range(CONSIDERED))


# ---- long prompts, and what the test does not see ------------------------------------

# A prefill takes 10 ms a token; decoding is nearly free.
SLOW_PREFILL = StepCosts(decode=(0.1, 0.0, 0.0), prefill=(0.0, 0.01, 0.0))


def test_a_long_prompt_asks_for_half_of_a_horizon_at_most(joins, member, newcomer) -> None:
    idle = member(expected=100.0)
    # 300 tokens: 3 s of prefill, of which the horizon of 2 s sees 1 s. The rest is for one that was
    # admitted before; each needs a token, 0.04 s for both.
    long = newcomer(prompt=300, expected=1.0)
    first = newcomer(prompt=95, expected=1.0, admitted=True)
    assert joins([idle, first, long], costs=SLOW_PREFILL) == [2]
    first = newcomer(prompt=97, expected=1.0, admitted=True)
    assert joins([idle, first, long], costs=SLOW_PREFILL) == []


def test_a_prefill_under_way_counts_with_those_that_wait(make_state, member, newcomer) -> None:
    rows = [member(expected=100.0), newcomer(prompt=300, expected=1.0)]
    for promised, expected in ((96, [1]), (98, [])):
        state = make_state(rows, total=1000, promised=promised, costs=SLOW_PREFILL)
        state = dataclasses.replace(state, kv_rate=AS_MODELLED)
        config = WorkingSetConfig(eta=1.0, hysteresis=0.0)
        assert admissible(state, config).join.tolist() == expected


# Ten readers of 5 tokens/s with 10 tokens to come share 1000 tokens of memory: 2 s of every horizon
# to 2 s, 10 * 10 * 305e-4 = 3.05 s of the first five, 61 % of them.
@pytest.mark.parametrize(
    ("share", "total", "expected"),
    [
        (0.0, 1000, [10]),
        (0.05, 1000, [10]),  # with a tenth more 5.5 %
        (0.4, 1000, []),  # 44 %: others will come, and prefills take their time
        (0.4, 10_000, [10]),  # no streams take turns
    ],
)
def test_prefills_go_on_where_streams_take_turns(
    make_state, make_stream, share, total, expected
) -> None:
    reader = make_stream(rate=2.5, slack=0.0, prompt=200, generated=100, expected=110.0)
    rows = [*([reader] * 10), make_stream(Phase.WAITING, prompt=1, expected=1.0)]
    state = make_state(rows, total=total, free=0, host=100_000, costs=COSTS)
    state = dataclasses.replace(state, kv_rate=10.0 * total, prefill_share=share)
    assert admissible(state, WorkingSetConfig(hysteresis=0.0)).join.tolist() == expected


def test_newcomers_that_fit_into_memory_do_not_pay_for_a_crowd(make_state, make_stream) -> None:
    # Ten readers will hold 306 tokens each on average, a newcomer 1.6: six fit beside them. What
    # prefills took in the last crowd, and a stock, count from the seventh on. Else the share that
    # was measured in a crowd kept all of a long queue out, and no new crowd corrected it.
    reader = make_stream(rate=2.5, slack=0.0, prompt=200, generated=100, expected=110.0)
    rows = [*([reader] * 10), *([make_stream(Phase.WAITING, prompt=1, expected=1.0)] * 10)]
    state = make_state(rows, total=3070, host=100_000, costs=COSTS)
    state = dataclasses.replace(state, kv_rate=30_700.0, prefill_share=0.9)
    assert admissible(state, WorkingSetConfig()).join.tolist() == [10, 11, 12, 13, 14, 15]


@pytest.mark.parametrize(("dry", "expected"), [(0, [20]), (1, [20]), (2, [])])
def test_no_stream_joins_while_readers_stall(joins, member, newcomer, dry, expected) -> None:
    # Twenty readers; a twentieth of them may stall.
    rows = [member(expected=100.0, slack=-1.0 if i < dry else 5.0, rate=5.0) for i in range(20)]
    short = newcomer(prompt=10, expected=10.0, rate=1.0)
    assert joins([*rows, short]) == expected


def test_text_that_the_front_end_holds_back_is_no_stall(joins, member, newcomer) -> None:
    """A tool call is parsed for as long as it lasts, however fast it is decoded."""
    held = {"generated": 4, "slack": -9.0, "first_text": math.nan}
    rows = [member(expected=100.0, rate=5.0, **(held if i < 10 else {})) for i in range(20)]
    short = newcomer(prompt=10, expected=10.0, rate=1.0)
    assert joins([*rows, short]) == [20]


def test_a_reader_faster_than_the_engine_stalls_for_another_reason(joins, member, newcomer) -> None:
    # A full-memory step takes 0.1 s: no stream gets more than 10 tokens/s.
    fast = [member(expected=100.0, slack=-1.0, rate=10.0) for _ in range(5)]
    short = newcomer(prompt=10, expected=10.0, rate=1.0)
    assert joins([*fast, short]) == [5]
    slower = [member(expected=100.0, slack=-1.0, rate=9.0) for _ in range(5)]
    assert joins([*slower, short]) == []


@pytest.mark.parametrize(("answers", "expected"), [(1000.0, 8), (1.0, 20)])
def test_few_join_until_a_decode_step_was_seen(joins, newcomer, answers, expected) -> None:
    """Nothing is known that would speak against the whole burst of a server's first moment."""
    burst = [newcomer(limit=answers, expected=answers, prompt=10) for _ in range(20)]
    assert len(joins(burst, costs=FREE_OF_CHARGE)) == expected
    assert len(joins(burst)) > 0


def test_those_who_joined_before_count(joins, member, newcomer) -> None:
    rows = [member() for _ in range(6)] + [newcomer() for _ in range(6)]
    assert joins(rows, costs=FREE_OF_CHARGE) == [6, 7]


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_the_first_one_alone_says_whether_any_joins(
    make_state, make_stream, monkeypatch, data
) -> None:
    drawn = np.random.default_rng(data.draw(st.integers(0, 10_000)))
    rows = [
        make_stream(
            slack=float(drawn.uniform(0.0, 20.0)),
            prompt=int(drawn.integers(1, 500)),
            expected=float(drawn.integers(101, 2000)),
        )
        for _ in range(data.draw(st.integers(1, 12)))
    ]
    rows += [
        make_stream(
            Phase.WAITING,
            arrival=float(99.0 + drawn.random()),
            prompt=int(drawn.integers(1, 2000)),
            expected=float(drawn.integers(1, 2000)),
        )
        for _ in range(data.draw(st.integers(0, 6)))
    ]
    state = make_state(rows, total=data.draw(st.integers(2000, 20_000)), host=8000)
    keys, config = drawn.integers(0, 3, len(rows)).astype(np.float64), WorkingSetConfig()
    joined = admissible(state, config, keys).join.tolist()
    with monkeypatch.context() as patched:
        patched.setattr("tokenflow_sgl.policy.admission._fits", lambda *_: True)
        assert admissible(state, config, keys).join.tolist() == joined
