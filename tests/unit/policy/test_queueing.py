"""The order of prefills: short ones soon, and no request overtaken without end."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from states import COSTS

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.contract.lengths import GRID, LengthCurves, Lengths
from tokenflow_sgl.costs import SHARED_STEP, StepCosts
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy, on_time, queueing
from tokenflow_sgl.policy.queueing import FARTHEST, Queue, first_of, queue_keys, waiting_queue
from tokenflow_sgl.policy.working_set import WorkingSetMemo

CONFIG = WorkingSetConfig(overtake=1.0)


@pytest.fixture(autouse=True, scope="module")
def none_is_in_time():
    """Those who are go before all of these: `test_on_time.py`."""
    with pytest.MonkeyPatch.context() as patch:
        none = np.zeros(0, dtype=np.int64)
        patch.setattr(queueing, "in_time", lambda state, arrival: none)
        yield


def waiting(make_stream, prompt, arrival):
    return make_stream(phase=Phase.WAITING, prompt=prompt, generated=0, slack=None, arrival=arrival)


def ranks(state, queue, config=CONFIG):
    """Place of each waiting stream in the order of prefills, 0 first; others 0."""
    keys = queue_keys(state, queue, config)
    order = first_of(state.streams.waiting_index, keys, None).tolist()
    return [order.index(i) if i in order else 0 for i in range(len(state.streams))]


def test_the_shortest_prefill_goes_first(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 4000, 90.0),
        waiting(make_stream, 100, 99.0),
        waiting(make_stream, 100, 99.5),
        make_stream(phase=Phase.RUNNING, arrival=99.9),
        waiting(make_stream, 3000, 99.9),
    ]
    made = make_state(rows, now=100.0)
    assert ranks(made, waiting_queue(made, Queue(), CONFIG)) == [3, 0, 1, 0, 2]


def test_what_has_waited_for_minutes_catches_up(make_state, make_stream) -> None:
    """After ten minutes a request counts as one of a third of its prefill that has just come."""
    rows = [
        waiting(make_stream, 4000, 100.0),
        waiting(make_stream, 1000, 700.0),
        waiting(make_stream, 2000, 700.0),
    ]
    made = make_state(rows, now=700.0)
    assert ranks(made, waiting_queue(made, Queue(), CONFIG)) == [1, 0, 2]


def cached(row, on_device, on_host):
    return dict(row, on_device=on_device, on_host=on_host)


@pytest.mark.parametrize("costs", [COSTS, StepCosts()], ids=["known costs", "none yet"])
def test_a_cached_prompt_is_as_long_as_the_rest_of_it(make_state, make_stream, costs) -> None:
    rows = [waiting(make_stream, prompt, 99.0) for prompt in (4000, 1000, 4000, 4000)]
    made = make_state(rows, costs=costs)
    assert ranks(made, waiting_queue(made, Queue(), CONFIG)) == [1, 0, 2, 3], "none of it is cached"
    rows[2], rows[3] = cached(rows[2], 3900, 3900), cached(rows[3], 3999, 3999)
    made = make_state(rows, costs=costs)
    assert ranks(made, waiting_queue(made, Queue(), CONFIG)) == [3, 2, 1, 0]


def test_a_prefill_after_a_prefix_attends_to_it(make_state, make_stream) -> None:
    rows = [waiting(make_stream, 4000, 99.0), cached(waiting(make_stream, 5000, 99.0), 1000, 1000)]
    made = make_state(rows)
    plain, after = made.prefill_seconds.tolist()
    assert after == pytest.approx(COSTS.prefill_seconds(4000, 1000))
    assert after > plain == pytest.approx(COSTS.prefill_seconds(4000))


def test_without_a_word_about_the_device_all_that_is_cached_is_there(
    make_state, make_stream
) -> None:
    rows = [cached(waiting(make_stream, 5000, 99.0), 0, 1000), make_stream()]
    made = make_state(rows)
    made = dataclasses.replace(made, streams=dataclasses.replace(made.streams, on_device=None))
    assert made.prefill_seconds.tolist() == [COSTS.prefill_seconds(4000, 1000)]


def test_prefills_are_found_by_the_streams_that_wait(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 300, 97.0),
        make_stream(),
        waiting(make_stream, 500, 98.0),
        make_stream(Phase.PAUSED),
        waiting(make_stream, 100, 99.0),
    ]
    made = make_state(rows)
    assert len(made.prefill_seconds) == 3
    expected = [COSTS.prefill_seconds(float(tokens)) for tokens in (100, 300)]
    assert made.prefill_seconds_of(np.array([4, 0])).tolist() == expected


def test_prompts_share_what_a_step_takes_by_itself(make_state, make_stream) -> None:
    rows = [waiting(make_stream, prompt, 99.0) for prompt in (SHARED_STEP // 4, SHARED_STEP)]
    made = make_state(rows)
    short, long = made.prompt_seconds.tolist()
    own = made.prefill_seconds.tolist()
    assert long == own[1] == pytest.approx(COSTS.prefill_seconds(SHARED_STEP))
    assert own[0] - short == pytest.approx(0.75 * COSTS.prefill_seconds(0.0))
    assert waiting_queue(made, Queue(), CONFIG).seconds.tolist() == [short, long]


def test_what_is_on_the_host_is_loaded_beside_the_prefill(make_state, make_stream) -> None:
    row = waiting(make_stream, 100_000, 99.0)
    rows = [
        cached(row, 99_900, 99_900),
        cached(row, 0, 99_900),  # 0.3 s on the link
        cached(row, 0, 50_000),  # 0.15 s, beside more than that of computing
    ]
    seconds = make_state(rows).prefill_seconds
    assert seconds[1] == pytest.approx(COSTS.load_seconds(99_900))
    assert seconds[0] == pytest.approx(COSTS.prefill_seconds(100, 99_900))
    assert seconds[0] < seconds[1]
    assert seconds[2] == pytest.approx(COSTS.prefill_seconds(50_000, 50_000))


def test_tokens_that_have_begun_are_not_added_to_seconds(make_state, make_stream) -> None:
    """Until the first prefill has been timed, requests are compared by their tokens."""
    rows = [waiting(make_stream, 50_000, 98.0), waiting(make_stream, 100, 98.5)]
    untimed = {"costs": dataclasses.replace(COSTS, prefill=None)}
    queue = waiting_queue(make_state(rows, **untimed), Queue(), CONFIG)
    begun = [rows[0], dict(rows[1], phase=Phase.RUNNING, slack=1.0)]
    queue = waiting_queue(make_state(begun, **untimed), queue, CONFIG)
    assert queue.begun.tolist() == [100.0]
    queue = waiting_queue(make_state(begun), queue, CONFIG)
    assert queue.begun.tolist() == [0.0]
    assert queue.seconds[0] == pytest.approx(COSTS.prompt_seconds(50_000))


def test_first_come_first_served_is_an_option(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 4000, 90.0),
        waiting(make_stream, 100, 99.0),
        waiting(make_stream, 10, 99.5),
    ]
    made = make_state(rows, now=100.0)
    config = WorkingSetConfig(overtake=0.0)
    assert ranks(made, waiting_queue(made, Queue(), config), config) == [0, 1, 2]


def half_begun(make_state, make_stream, **given):
    """A long prompt before 89 short ones of as much work, of which half have begun; the queue."""
    rows = [
        {**waiting(make_stream, 4000, 98.9), **given},
        *(waiting(make_stream, 1000, 99.0 + i / 1000) for i in range(89)),
    ]
    queue = waiting_queue(make_state(rows, now=100.0), Queue(), CONFIG)
    begun = [
        dict(row, phase=Phase.RUNNING, slack=1.0) if 0 < i < 46 else row
        for i, row in enumerate(rows)
    ]
    after = make_state(begun, now=101.0)
    return after, waiting_queue(after, queue, CONFIG), queue


def test_what_would_have_begun_in_the_order_of_arrival_goes_first(make_state, make_stream) -> None:
    after, queue, before = half_begun(make_state, make_stream)
    assert queue.most == pytest.approx(before.seconds.sum()), "the most that has waited"
    assert queue.begun == pytest.approx([before.seconds[1] * 45] * 45), "of each that waits"
    share = queue.begun[0] / queue.most
    assert ranks(after, queue, WorkingSetConfig(overtake=1.01 * share))[0] == 44
    assert ranks(after, queue, WorkingSetConfig(overtake=0.99 * share))[0] == 0


def test_one_in_a_hundred_waits_six_times_as_long(make_state, make_stream) -> None:
    after, queue, _ = half_begun(make_state, make_stream)
    share = queue.begun[0] / queue.most
    queue = dataclasses.replace(queue, seen=100)
    short = ranks(after, queue, WorkingSetConfig(overtake=0.99 * share))
    assert short[0] == 44, "the longest of them all"
    assert ranks(after, queue, WorkingSetConfig(overtake=0.17 * share))[0] == 44
    assert ranks(after, queue, WorkingSetConfig(overtake=0.16 * share))[0] == 0


def test_it_is_one_in_a_hundred_of_all_that_have_waited(make_state, make_stream) -> None:
    """Whoever was put off counts on; else the next longest would be, and so on."""
    rows = [waiting(make_stream, 4000 - 10 * i, 98.0 + i / 1000) for i in range(100)]
    queue = waiting_queue(make_state(rows, now=100.0, total=10**6), Queue(), CONFIG)
    queue = dataclasses.replace(queue, begun=np.full(100, queue.most))
    made = make_state(rows, now=100.0, total=10**6)
    put_off = np.isfinite(queue_keys(made, queue, CONFIG))
    assert put_off.nonzero()[0].tolist() == [0], "the longest"
    rows[0] = dict(rows[0], phase=Phase.RUNNING, slack=1.0)
    made = make_state(rows, now=101.0, total=10**6)
    after = waiting_queue(made, queue, CONFIG)
    assert after.late == 1
    assert np.isneginf(queue_keys(made, after, CONFIG)[1:]).all(), "the next one is not"
    # Who begins before that much has overtaken it was not put off.
    sooner = waiting_queue(made, dataclasses.replace(queue, begun=np.zeros(100)), CONFIG)
    assert sooner.late == 0


def test_a_queue_that_is_never_empty_spares_some_only(make_state, make_stream) -> None:
    rows = [waiting(make_stream, 1000 + i, 98.0 + i / 1000) for i in range(300)]
    queue = waiting_queue(make_state(rows, now=100.0, total=10**6), Queue(), CONFIG)
    made = make_state(rows, now=100.0, total=10**6)
    queue = dataclasses.replace(queue, begun=np.full(300, queue.most), seen=10**6)
    keys = queue_keys(made, queue, CONFIG)
    assert np.isneginf(keys[:100]).all(), "all but the longest"
    assert np.isfinite(keys[100:]).all()


@pytest.mark.parametrize(("weight", "first"), [(1.0, True), (0.5, False), (2.0, True)])
def test_a_light_request_is_overtaken_for_longer(make_state, make_stream, weight, first) -> None:
    after, queue, _ = half_begun(make_state, make_stream)
    weights = np.ones(len(after.streams))
    weights[0] = weight
    after = dataclasses.replace(after, streams=dataclasses.replace(after.streams, weight=weights))
    share = queue.begun[0] / queue.most
    assert (ranks(after, queue, WorkingSetConfig(overtake=0.9 * share))[0] == 0) is first


def test_a_queue_that_was_empty_forgets_what_has_waited(make_state, make_stream) -> None:
    _, queue, before = half_begun(make_state, make_stream)
    assert queue.seen == before.seen == 90
    none = waiting_queue(make_state([make_stream()]), queue, CONFIG)
    fresh = make_state([waiting(make_stream, 100, 100.5)], now=101.0)
    found = waiting_queue(fresh, none, CONFIG)
    assert (found.most, found.seen) == (pytest.approx(found.seconds.sum()), 1)


def test_what_ended_counts_and_what_has_its_slot_now_starts_afresh(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 4000, 90.0),
        waiting(make_stream, 1000, 99.0),
        waiting(make_stream, 900, 99.1),
    ]
    queue = waiting_queue(make_state(rows, now=100.0), Queue(), CONFIG)
    # The second began and ended meanwhile, and a new one has its slot.
    later = [
        rows[0],
        waiting(make_stream, 1000, 100.5),
        dict(rows[2], phase=Phase.RUNNING, slack=1.0),
    ]
    found = waiting_queue(make_state(later, now=101.0), queue, CONFIG)
    assert found.begun.tolist() == pytest.approx([queue.seconds[1:].sum(), 0.0])


def test_an_objective_that_can_be_met_goes_first(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 50, 99.0),
        waiting(make_stream, 4000, 99.0),
        waiting(make_stream, 4000, 99.0),
    ]
    made = make_state(rows, now=100.0)
    queue = waiting_queue(made, Queue(), CONFIG)
    prefill = float(queue.seconds[1])
    # Two of its prefills and two plans before the last moment.
    far = 3.0 * prefill + 2.0 * WorkingSetConfig().cycle
    for left, place in ((1.01 * prefill, 0), (far - 0.01, 0), (far + 0.01, 1), (0.5 * prefill, 1)):
        slo = np.array([np.nan, 1.0 + left, np.nan])
        streams = dataclasses.replace(made.streams, ttft_slo=slo)
        assert ranks(dataclasses.replace(made, streams=streams), queue)[1] == place


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([-np.inf, -2.0, -1.0, 0.5]), max_size=30), st.integers(0, 30))
def test_the_head_of_a_queue_is_that_of_the_sorted_one(keys, most) -> None:
    keys, index = np.array([9.0, *keys]), np.arange(1, len(keys) + 1)
    whole = first_of(index, keys, None).tolist()
    assert whole == sorted(index.tolist(), key=lambda i: keys[i]), "sorted() is stable"
    assert first_of(index, keys, most).tolist() == whole[:most]
    assert first_of(index, None, most).tolist() == index[:most].tolist()


def work_before_the_long_one(
    make_state, make_stream, shorts, overtake, now=0.01
) -> tuple[float, float]:
    """A long prompt that came at 0.0, three short ones, and a new one for each that begins.

    Returns:
        Seconds of prefills that begin before the long one, and those that waited at most; infinite
        if the short ones run out first.
    """
    config = WorkingSetConfig(overtake=overtake)
    here = {0: waiting(make_stream, 1000, 0.0)}
    here |= {i: waiting(make_stream, shorts[i], now - 0.01 + 0.001 * i) for i in (1, 2, 3)}
    queue, passed = Queue(), 0.0
    for new in range(4, len(shorts)):
        made = make_state(list(here.values()), now=now, total=10**9)
        standing = dataclasses.replace(made.streams.standing, slot=np.array(list(here)))
        streams = dataclasses.replace(made.streams, standing=standing)
        made = dataclasses.replace(made, streams=streams)
        queue = waiting_queue(made, queue, config)
        first = ranks(made, queue, config).index(0)
        seconds = float(queue.seconds[first])
        if list(here)[first] == 0:
            return passed, queue.most
        del here[list(here)[first]]
        now, passed = now + seconds, passed + seconds
        here[new] = waiting(make_stream, shorts[new], now)
    return np.inf, queue.most


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(50, 400), min_size=300, max_size=300), st.sampled_from([0.5, 0.9]))
def test_no_request_is_overtaken_without_end(make_state, make_stream, shorts, overtake) -> None:
    """Short ones come as fast as they begin, so that shortest first alone never gets to it."""
    passed, most = work_before_the_long_one(make_state, make_stream, shorts, overtake)
    largest = 1.01 * float(COSTS.prompt_seconds(400))
    assert overtake * most <= passed <= FARTHEST * overtake * most + largest
    without, _ = work_before_the_long_one(make_state, make_stream, shorts, 1000.0)
    assert without == np.inf


def test_those_in_time_do_not_overtake_without_end(make_state, make_stream, monkeypatch) -> None:
    monkeypatch.setattr(queueing, "in_time", on_time.in_time)
    shorts = [50 + number % 350 for number in range(300)]
    passed, most = work_before_the_long_one(make_state, make_stream, shorts, 0.9, now=5.0)
    assert 0.9 * most <= passed <= FARTHEST * most
    without, _ = work_before_the_long_one(make_state, make_stream, shorts, 1000.0, now=5.0)
    assert without == np.inf


def test_the_policy_remembers_which_stream_was_overtaken(make_state, make_stream) -> None:
    made = make_state(
        [waiting(make_stream, 4000, 90.0), waiting(make_stream, 100, 99.0)], now=100.0
    )
    decision = WorkingSetPolicy().decide(made)
    assert isinstance(decision.memo, WorkingSetMemo)
    assert decision.memo.queue.slot.tolist() == made.streams.slot.tolist()
    again = WorkingSetPolicy().decide(made)
    assert again == decision
    assert decision.memo.queue != Queue()
    assert decision.memo.queue != "queue"


# Nine answers of ten have 500 tokens, the others 16,000.
_TAIL = np.where(GRID < 500, 1.0, np.where(GRID < 16_000, 0.1, 0.0))[None]
TAIL = Lengths(LengthCurves(_TAIL), LengthCurves(_TAIL))


def with_tail(state):
    return dataclasses.replace(state, streams=dataclasses.replace(state.streams, lengths=TAIL))


def thinker(make_stream, generated, **given):
    return make_stream(
        **{"generated": generated, "expected": 16e3, "slack": -10.0, "thinking": True, **given}
    )


def keys_of(rows, make_state):
    made = with_tail(make_state(rows, now=100.0))
    return queue_keys(made, waiting_queue(made, Queue(), CONFIG), CONFIG)


def test_a_thought_that_has_got_long_goes_behind_short_ones(make_state, make_stream) -> None:
    rows = [thinker(make_stream, generated, phase=Phase.PAUSED) for generated in (10, 400, 600)]
    started, nearly, long = keys_of(rows, make_state)
    assert nearly < started < long, "whatever has been done is done; the long one is just beginning"


def test_a_request_that_thinks_needs_more_than_its_prefill(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 100, 99.0),
        {**waiting(make_stream, 100, 99.0), "thinking": True, "expected": 16e3},
        waiting(make_stream, 4000, 99.0),
    ]
    short, thinks, long = keys_of(rows, make_state)
    assert short < long < thinks < 0.0


def test_what_thinks_and_runs_counts_as_if_it_had_waited_longer(make_state, make_stream) -> None:
    # With five minutes more than that: 310, 610 and 630 seconds.
    rows = [thinker(make_stream, 10, arrival=arrival) for arrival in (90.0, -210.0, -230.0)]
    rows[1]["phase"] = rows[2]["phase"] = Phase.PAUSED
    runs, less, more = keys_of(rows, make_state)
    assert more < runs < less


def test_without_costs_the_order_of_thoughts_is_that_of_arrival(make_state, make_stream) -> None:
    rows = [thinker(make_stream, n, arrival=90.0 - n, phase=Phase.PAUSED) for n in (1, 2, 3)]
    made = make_state(rows, now=100.0, costs=StepCosts())
    keys = queue_keys(made, waiting_queue(made, Queue(), CONFIG), CONFIG)
    assert (np.diff(keys) < 0.0).all()
