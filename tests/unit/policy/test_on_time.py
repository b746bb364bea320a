"""Newcomers who can have their first token in time go first, the most of them, none too late."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from states import COSTS

from tokenflow_sgl.contract import Phase
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.lab.profiles import load_profile
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.sim import EngineOptions, simulate
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.policy import WorkingSetConfig, queueing
from tokenflow_sgl.policy.mixed_steps import MEANWHILE
from tokenflow_sgl.policy.on_time import IN_TIME, MOST, in_time, most_in_time
from tokenflow_sgl.policy.queueing import Queue, first_of, queue_keys, waiting_queue

CONFIG = WorkingSetConfig(overtake=1.0)
LONG = 14_000
"""Tokens of a prompt that takes over half of what is in time."""
ALONE = 1.0 + MEANWHILE
"""Seconds that pass while one of a prefill is computed where no stream has a reader."""


def waiting(make_stream, prompt, arrival, **given):
    return make_stream(
        phase=Phase.WAITING, prompt=prompt, generated=0, slack=None, arrival=arrival, **given
    )


def ends(order, seconds):
    return list(itertools.accumulate(seconds[job] for job in order))


jobs = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 60)), max_size=6)


@given(jobs)
@settings(max_examples=300, deadline=None)
def test_no_more_could_be_in_time_and_no_order_has_a_smaller_mean_wait(found) -> None:
    seconds, left = [float(each) for each, _ in found], [float(each) for _, each in found]
    order = most_in_time(seconds, left)

    def all_in_time(jobs):
        return all(end <= left[job] for job, end in zip(jobs, ends(jobs, seconds), strict=True))

    assert all_in_time(order)
    size = max(
        (
            size
            for size in range(len(found) + 1)
            for some in itertools.permutations(range(len(found)), size)
            if all_in_time(some)
        ),
        default=0,
    )
    assert len(order) == size
    waits = [sum(ends(o, seconds)) for o in itertools.permutations(order) if all_in_time(o)]
    assert sum(ends(order, seconds)) == min(waits)


def line(made, queue=None, config=CONFIG):
    """The waiting streams in their order."""
    queue = queue or waiting_queue(made, Queue(), config)
    keys = queue_keys(made, queue, config)
    return first_of(made.streams.waiting_index, keys, None).tolist()


def last_moment(prompt):
    """When one of now 100.0 must have come to be in time just so if it goes first."""
    return 100.0 - IN_TIME + ALONE * float(COSTS.prefill_seconds(prompt))


def test_a_long_prompt_goes_first_at_its_last_moment(make_state, make_stream) -> None:
    def made(arrival):
        rows = [waiting(make_stream, LONG, arrival), waiting(make_stream, 1000, 99.9)]
        return make_state(rows, now=100.0)

    soon, late = last_moment(LONG) + 0.01, last_moment(LONG) - 0.01
    assert line(made(99.5)) == [1, 0], "there is time for both, so the shorter one goes first"
    assert line(made(soon)) == [0, 1]
    assert line(made(late)) == [1, 0], "it will be late, whatever is done"


def test_the_longest_is_left_out_where_not_all_can_be_in_time(make_state, make_stream) -> None:
    rows = [waiting(make_stream, prompt, 98.6) for prompt in (LONG, 8000, 8000, 8000)]
    made = make_state(rows, now=100.0)
    assert made.prefill_seconds.sum() * ALONE > IN_TIME - 1.4
    assert line(made)[-1] == 0


def test_who_is_late_waits_for_some_and_not_for_many_seconds(make_state, make_stream) -> None:
    """What holds up who is late by more than `IN_TIME`, in sum, does not go first."""

    def made(late):
        rows = [waiting(make_stream, 1000, 50.0) for _ in range(late)]
        rows.append(waiting(make_stream, 4000, 99.9))
        return make_state(rows, now=100.0)

    most = int(IN_TIME / (ALONE * float(COSTS.prefill_seconds(4000))))
    assert most >= 2
    assert line(made(most))[0] == most
    assert line(made(most + 1))[-1] == most + 1


def test_what_nothing_overtakes_goes_before_all(make_state, make_stream) -> None:
    config = WorkingSetConfig(overtake=0.0)
    rows = [waiting(make_stream, 4000, 50.0), waiting(make_stream, 100, 99.9)]
    assert line(make_state(rows, now=100.0), config=config) == [0, 1]


def test_the_prefill_under_way_comes_first(make_state, make_stream) -> None:
    rows = [waiting(make_stream, LONG, last_moment(LONG) + 0.01), waiting(make_stream, 1000, 99.9)]
    made = make_state(rows, now=100.0)
    assert 0 in in_time(made, made.streams.arrival)
    device = made.memory.device
    kv = dataclasses.replace(device.kv, promised=4000)
    memory = dataclasses.replace(made.memory, device=dataclasses.replace(device, kv=kv))
    assert 0 not in in_time(dataclasses.replace(made, memory=memory), made.streams.arrival)


def test_an_objective_says_what_is_in_time(make_state, make_stream) -> None:
    rows = [waiting(make_stream, 4000, 97.0), waiting(make_stream, 1000, 99.9)]
    made = make_state(rows, now=100.0)
    assert in_time(made, made.streams.arrival).tolist() == [1], "the other is late by a second"
    streams = dataclasses.replace(made.streams, ttft_slo=np.array([9.0, np.nan]))
    found = dataclasses.replace(made, streams=streams)
    assert in_time(found, streams.arrival).tolist() == [1, 0]


@pytest.mark.parametrize(
    "column", [{"weight": np.array([1.0, 2.0])}, {"tolerance": np.array([0.5, 0.5])}]
)
def test_weights_and_what_is_tolerated_decide_by_themselves(
    make_state, make_stream, column
) -> None:
    rows = [waiting(make_stream, 4000, 99.8), waiting(make_stream, 1000, 99.9)]
    made = make_state(rows, now=100.0)
    assert len(in_time(made, made.streams.arrival)) == 2
    streams = dataclasses.replace(made.streams, **column)
    assert not len(in_time(dataclasses.replace(made, streams=streams), streams.arrival))


def test_nothing_is_known_without_costs(make_state, make_stream) -> None:
    made = make_state([waiting(make_stream, 100, 99.9)], costs=StepCosts())
    assert not len(in_time(made, made.streams.arrival))


def test_of_a_crowd_the_shortest_are_looked_at(make_state, make_stream) -> None:
    rows = [waiting(make_stream, 10 + number, 99.9) for number in range(2 * MOST)]
    made = make_state(rows[::-1], now=100.0)
    found = in_time(made, made.streams.arrival)
    assert len(found) <= MOST
    assert made.streams.prompt[found].max(initial=0) < 10 + MOST


def share_in_time(monkeypatch, without):
    """Of long prompts among short ones, somewhat more than the device carries."""
    if without:
        none = np.zeros(0, dtype=np.int64)
        monkeypatch.setattr(queueing, "in_time", lambda state, arrival: none)
    arrivals = np.cumsum(np.random.default_rng(5).exponential(0.19, 600)).tolist()
    requests = tuple(
        TraceRequest(arrival, 4_000 if number % 4 else 16_000, 40, rate=20.0)
        for number, arrival in enumerate(arrivals)
    )
    trace = Trace("long and short", requests, Accounting(len(requests), len(requests)))
    options = EngineOptions(max_total_tokens=900_000, chunked_prefill_size=8192)
    run = simulate(trace, load_profile("h200", "llama3-8b"), options, policy="tokenflow").run
    return parse_goal(f"ttft<={IN_TIME:g}").met(run).mean()


def test_more_readers_have_text_in_time(monkeypatch) -> None:
    """0.61 of them instead of 0.53."""
    with monkeypatch.context() as patch:
        before = share_in_time(patch, without=True)
    assert share_in_time(monkeypatch, without=False) > before + 0.05


def test_admission_by_objectives_has_its_own_order(make_state, make_stream) -> None:
    rows = [waiting(make_stream, 1000, 50.0), waiting(make_stream, 4000, 99.9)]
    made = make_state(rows, now=100.0)
    assert line(made) == [1, 0]
    assert line(made, config=WorkingSetConfig(overtake=1.0, admission="slo")) == [0, 1]
