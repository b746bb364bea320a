"""QoServe's queue, relegation and chunk sizes, worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.schedulers.qoserve import ALPHA, TTFT_SLO, QoServeScheduler
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest


def asked(prompt: int, at: float = 0.0, **given: float) -> TraceRequest:
    return TraceRequest(at, prompt, 50, **given)


def test_the_queue_is_by_deadline_and_by_work(queued) -> None:
    # Due after 6 s, 4 s and 6.1 s; 300 tokens move the first one back by 2.4 s, 20 by 0.16 s.
    core = queued(asked(300), asked(300, ttft_slo_s=4.0), asked(20, 0.1))
    assert pytest.approx(2.4) == 300 * ALPHA
    assert QoServeScheduler(core).offered() == [2, 1, 0]


def test_a_request_that_is_too_late_comes_last_for_good(queued) -> None:
    core = queued(asked(300, ttft_slo_s=0.2), asked(900))
    scheduler = QoServeScheduler(core)
    # 300 tokens take 0.3 s here.
    assert scheduler.offered() == [1, 0]
    core = queued(asked(300, ttft_slo_s=0.4), asked(900))
    assert QoServeScheduler(core).offered() == [0, 1]


def test_a_first_token_is_due_in_six_seconds_and_the_next_as_they_are_read(queued) -> None:
    core = queued(TraceRequest(1.0, 10, 50, rate=4.0), TraceRequest(1.0, 10, 50, tbt_slo_s=0.1))
    scheduler = QoServeScheduler(core)
    both = np.array([0, 1])
    assert scheduler._deadlines(both).tolist() == [1.0 + TTFT_SLO] * 2
    core.streams.generated[:] = 3
    assert scheduler._deadlines(both).tolist() == pytest.approx([7.75, 7.3])


@pytest.mark.parametrize(
    ("slack", "tokens"),
    [
        (-1.0, 128),  # too late anyway: the least
        (0.20, 128),
        (0.31, 256),  # 255 tokens take 0.255 s here, 1.2 times that is 0.306 s
        (100.0, 2552),
    ],
)
def test_a_step_is_as_long_as_the_next_deadline_allows(queued, slack, tokens) -> None:
    core = queued(asked(10), max_total_tokens=100_000)
    scheduler = QoServeScheduler(core)
    core.running = np.array([0])
    core.streams.generated[0] = 1
    (due,) = scheduler._deadlines(core.running)
    scheduler._now = due - slack
    assert scheduler.chunk_limit() == tokens


def test_steps_are_short_where_memory_is_scarce(queued) -> None:
    assert QoServeScheduler(queued(asked(10), max_total_tokens=31_000)).chunk_limit() == 512


def test_the_speed_of_prefills_is_learned_from_its_steps(queued) -> None:
    core = queued(asked(100))
    scheduler = QoServeScheduler(core)
    assert scheduler._speed == pytest.approx(1000.0)
    step = scheduler.plan(0.0)
    scheduler.ran(step, np.array([0.0]), 0.2, 0)
    assert scheduler._speed == pytest.approx(0.995 * 1000.0 + 0.005 * 500.0)


def test_running_streams_go_on_during_a_prefill(times_of, device, options) -> None:
    rows = (TraceRequest(0.0, 10, 100, rate=10.0), TraceRequest(0.2, 600, 20, rate=10.0))
    trace = Trace("two", rows, Accounting(2, 2))
    gaps = {}
    for policy in ("fcfs", "qoserve"):
        done = simulate(trace, device, options(), policy=policy, known_lengths=True)
        gaps[policy] = float(np.diff(times_of(done)[0]).max())
    assert gaps["fcfs"] >= 0.6
    assert gaps["qoserve"] < 0.52  # it has slack enough for steps of 512 tokens
