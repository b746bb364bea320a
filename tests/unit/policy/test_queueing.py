"""The order of prefills: short ones soon, and no request overtaken without end."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from states import COSTS

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.contract.lengths import GRID, LengthCurves, Lengths
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.policy import WorkingSetConfig, WorkingSetPolicy
from tokenflow_sgl.policy.queueing import Queue, first_of, queue_keys, waiting_queue
from tokenflow_sgl.policy.working_set import WorkingSetMemo

CONFIG = WorkingSetConfig(overtake=3.0)


def waiting(make_stream, prompt, arrival):
    return make_stream(phase=Phase.WAITING, prompt=prompt, generated=0, slack=None, arrival=arrival)


def ranks(state, queue, config=CONFIG):
    """Place of each waiting stream in the order of prefills, 0 first; others 0."""
    keys = queue_keys(state, queue, config)
    order = first_of(state.streams.waiting_index, keys, None).tolist()
    return [order.index(i) if i in order else 0 for i in range(len(state.streams))]


def test_the_highest_response_ratio_goes_first(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 4000, 90.0),  # ten seconds for four thousand tokens
        waiting(make_stream, 100, 99.0),  # one for a hundred
        waiting(make_stream, 100, 99.5),
        make_stream(phase=Phase.RUNNING, arrival=99.9),
        waiting(make_stream, 4000, 99.9),
    ]
    made = make_state(rows, now=100.0)
    assert ranks(made, waiting_queue(made, Queue())) == [2, 0, 1, 0, 3]


def cached(row, on_device, on_host):
    return dict(row, on_device=on_device, on_host=on_host)


@pytest.mark.parametrize("costs", [COSTS, StepCosts()], ids=["known costs", "none yet"])
def test_a_cached_prompt_is_as_long_as_the_rest_of_it(make_state, make_stream, costs) -> None:
    rows = [waiting(make_stream, prompt, 99.0) for prompt in (4000, 1000, 4000, 4000)]
    made = make_state(rows, costs=costs)
    assert ranks(made, waiting_queue(made, Queue())) == [1, 0, 2, 3], "none of it is cached"
    rows[2], rows[3] = cached(rows[2], 3900, 3900), cached(rows[3], 3999, 3999)
    made = make_state(rows, costs=costs)
    assert ranks(made, waiting_queue(made, Queue())) == [3, 2, 1, 0]


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


def test_a_cached_prompt_that_nothing_overtakes_yields_for_its_rest_only(
    make_state, make_stream
) -> None:
    """The bound is a multiple of what is computed, so that it holds up later arrivals for less."""
    rows = [
        cached(waiting(make_stream, 4000, 98.9), 3900, 3900),
        waiting(make_stream, 1000, 99.0),
        waiting(make_stream, 10, 99.9),
    ]
    queue = waiting_queue(make_state(rows), Queue())
    begun = [rows[0], dict(rows[1], phase=Phase.RUNNING, slack=1.0), rows[2]]
    after = make_state(begun)
    queue = waiting_queue(after, queue)
    assert queue.overtaken[0] > 3.0 * queue.seconds[0]
    assert ranks(after, queue) == [0, 0, 1]


def test_tokens_that_overtook_are_not_added_to_seconds(make_state, make_stream) -> None:
    """Until the first prefill has been timed, requests are compared by their tokens."""
    rows = [waiting(make_stream, 50_000, 98.0), waiting(make_stream, 100, 98.5)]
    untimed = {"costs": dataclasses.replace(COSTS, prefill=None)}
    queue = waiting_queue(make_state(rows, **untimed), Queue())
    begun = [rows[0], dict(rows[1], phase=Phase.RUNNING, slack=1.0)]
    queue = waiting_queue(make_state(begun, **untimed), queue)
    assert queue.overtaken.tolist() == [100.0]
    queue = waiting_queue(make_state(begun), queue)
    assert queue.overtaken.tolist() == [0.0]
    assert queue.seconds[0] == pytest.approx(COSTS.prefill_seconds(50_000))


def test_first_come_first_served_is_an_option(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 4000, 90.0),
        waiting(make_stream, 100, 99.0),
        waiting(make_stream, 10, 99.5),
    ]
    made = make_state(rows, now=100.0)
    assert ranks(made, waiting_queue(made, Queue()), WorkingSetConfig(overtake=0.0)) == [0, 1, 2]


def test_what_is_overtaken_enough_goes_first(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 4000, 98.9),
        *(waiting(make_stream, 1000, 99.0 + i / 1000) for i in range(90)),
    ]
    before = make_state(rows, now=100.0)
    queue = waiting_queue(before, Queue())
    assert ranks(before, queue)[0] == 90
    # Half of the short ones have begun.
    begun = [
        dict(row, phase=Phase.RUNNING, slack=1.0) if 0 < i < 46 else row
        for i, row in enumerate(rows)
    ]
    after = make_state(begun, now=101.0)
    queue = waiting_queue(after, queue)
    assert queue.overtaken[0] == pytest.approx(queue.seconds[1] * 45)
    assert queue.overtaken[0] > 3.0 * queue.seconds[0]
    assert ranks(after, queue)[0] == 0
    assert (queue.overtaken[1:] == 0.0).all(), "nothing later than these has begun"


def test_what_ended_counts_and_what_has_its_slot_now_starts_afresh(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 4000, 90.0),
        waiting(make_stream, 1000, 99.0),
        waiting(make_stream, 900, 99.1),
    ]
    queue = waiting_queue(make_state(rows, now=100.0), Queue())
    # The second began and ended meanwhile, and a new one has its slot.
    later = [
        rows[0],
        waiting(make_stream, 1000, 100.5),
        dict(rows[2], phase=Phase.RUNNING, slack=1.0),
    ]
    found = waiting_queue(make_state(later, now=101.0), queue)
    assert found.overtaken.tolist() == pytest.approx([queue.seconds[1:].sum(), 0.0])


def test_an_objective_that_can_be_met_goes_first(make_state, make_stream) -> None:
    rows = [
        waiting(make_stream, 50, 99.0),
        waiting(make_stream, 4000, 99.0),
        waiting(make_stream, 4000, 99.0),
    ]
    made = make_state(rows, now=100.0)
    queue = waiting_queue(made, Queue())
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


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_no_request_is_overtaken_without_end(make_state, make_stream, data) -> None:
    """One prefill at a time, requests come and come: the bound holds for each of them."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    arrivals = np.cumsum(rng.exponential(0.05, 60))
    prompts = np.where(rng.random(60) < 0.3, 8000, rng.integers(10, 400, 60))
    ends_at_once = rng.random(60) < 0.5
    now, queue, begun, work = 0.0, Queue(), {}, {}
    overtaken = np.zeros(60)
    for _ in range(60):
        here = [i for i in range(60) if arrivals[i] <= now]
        if len(begun) == len(here):
            now = float(arrivals[len(here)])
            here.append(len(here))
        present = [i for i in here if i not in begun or not ends_at_once[i]]
        rows = [
            make_stream(
                phase=Phase.RUNNING, prompt=int(prompts[i]), arrival=float(arrivals[i]), slack=1.0
            )
            if i in begun
            else waiting(make_stream, int(prompts[i]), float(arrivals[i]))
            for i in present
        ]
        made = make_state(rows, now=now, total=10**9)
        standing = dataclasses.replace(made.streams.standing, slot=np.array(present))
        streams = dataclasses.replace(made.streams, standing=standing)
        made = dataclasses.replace(made, streams=streams)
        queue = waiting_queue(made, queue)
        places = dict(zip(present, ranks(made, queue), strict=True))
        left = [i for i in here if i not in begun]
        seconds = dict(zip(left, queue.seconds.tolist(), strict=True))
        chosen = min(left, key=lambda i: places[i])
        for i in left:
            if arrivals[i] < arrivals[chosen]:
                overtaken[i] += seconds[chosen]
                # The one that crosses the bound is the last.
                work[i] = max(work.get(i, 0.0), seconds[chosen])
                assert overtaken[i] <= CONFIG.overtake * seconds[i] + work[i] + 1e-9
        begun[chosen] = True
        now += seconds[chosen]


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
    return queue_keys(made, waiting_queue(made, Queue()), CONFIG)


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
    rows = [thinker(make_stream, 10, arrival=arrival) for arrival in (90.0, 85.0, 75.0)]
    rows[1]["phase"] = rows[2]["phase"] = Phase.PAUSED
    runs, fifteen, twenty_five = keys_of(rows, make_state)
    assert twenty_five < runs < fifteen


def test_without_costs_the_order_of_thoughts_is_that_of_arrival(make_state, make_stream) -> None:
    rows = [thinker(make_stream, n, arrival=90.0 - n, phase=Phase.PAUSED) for n in (1, 2, 3)]
    made = make_state(rows, now=100.0, costs=StepCosts())
    keys = queue_keys(made, waiting_queue(made, Queue()), CONFIG)
    assert (np.diff(keys) < 0.0).all()
