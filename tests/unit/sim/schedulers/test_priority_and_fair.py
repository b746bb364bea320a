"""SGLang's other settings and fair shares, worked out by hand."""

from __future__ import annotations

import dataclasses

import pytest

from tokenflow_sgl.choices import Sessions
from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.schedulers.by_name import POLICIES, settings_of
from tokenflow_sgl.lab.sim.schedulers.fair import FairScheduler
from tokenflow_sgl.lab.sim.schedulers.priority import PriorityScheduler
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.step import SimulatedDevice
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest


def make_core(device, options, requests: list[TraceRequest], **given) -> SimulatedCore:
    core = SimulatedCore(
        SimulatedStreams(requests),
        Prefixes(requests, {}),
        SimulatedDevice(device),
        options(**given),
    )
    for index, request in enumerate(requests):
        core.arrive(index, request.arrival_s, request.arrival_s)
    return core


def traced(*requests: TraceRequest) -> Trace:
    return Trace("toy", requests, Accounting(len(requests), len(requests)))


def test_settings_belong_to_policies(options) -> None:
    given = options(host_tokens=500, chunked_prefill_size=8192)
    assert settings_of("tokenflow", given) == given
    assert settings_of("fcfs", given).host_tokens == 0
    chunked = settings_of("chunked", given)
    assert (chunked.enable_mixed_chunk, chunked.chunked_prefill_size) == (True, 2048)
    assert {"fcfs", "chunked", "priority", "vtc", "tokenflow"} < set(POLICIES)


# ---- priority ---------------------------------------------------------------------------


def asked(priority: int | None, prompt: int = 100, output: int = 50) -> TraceRequest:
    return TraceRequest(0.0, prompt, output, priority=priority)


def test_priorities_order_the_queue(device, options) -> None:
    core = make_core(device, options, [asked(None), asked(1), asked(3), asked(3)])
    assert PriorityScheduler(core).offered() == [2, 3, 1, 0]


def test_a_missing_row_is_taken_from_the_least_important(times_of, device, options) -> None:
    rows = (
        TraceRequest(0.0, 10, 100, priority=0),
        TraceRequest(0.0, 10, 100, priority=1),
        TraceRequest(0.5, 10, 20, priority=5),
    )
    settings = options(max_running_requests=2)
    done = simulate(traced(*rows), device, settings, policy="priority", known_lengths=True)
    times = times_of(done)
    assert done.retracted == 1
    # It comes after 0.5 s and runs at once; the other two have 100 tokens to go.
    assert times[2][0] < 0.6
    assert max(b - a for a, b in zip(times[0], times[0][1:], strict=False)) > 0.2
    assert max(b - a for a, b in zip(times[1], times[1][1:], strict=False)) < 0.1
    plain = simulate(traced(*rows), device, settings, policy="fcfs", known_lengths=True)
    assert times_of(plain)[2][0] > 1.0


def test_equals_do_not_preempt_each_other(device, options) -> None:
    rows = [TraceRequest(0.1 * number, 10, 50, priority=2) for number in range(5)]
    settings = options(max_running_requests=2)
    assert simulate(traced(*rows), device, settings, policy="priority").retracted == 0


def test_short_memory_alone_preempts_no_stream(device, options) -> None:
    rows = [asked(0, 400, 300), dataclasses.replace(asked(9, 400, 300), arrival_s=0.6)]
    assert simulate(traced(*rows), device, options(), policy="priority").retracted == 0


# ---- fair shares ------------------------------------------------------------------------


def client(name: str | None, prompt: int, at: float = 0.0, output: int = 10) -> TraceRequest:
    return TraceRequest(at, prompt, output, session=name)


def test_the_least_served_client_is_next(device, options) -> None:
    rows = [client("a", 100), client("a", 100), client("a", 100), client("b", 250), client("b", 9)]
    core = make_core(device, options, rows)
    # a: 0, b: 0 -> a (100), b (250), a (200), a (300), b
    assert FairScheduler(core).offered() == [0, 3, 1, 2, 4]


def test_output_counts_twice(device, options) -> None:
    core = make_core(device, options, [client("a", 100), client("b", 110)])
    fair = FairScheduler(core)
    step = fair.plan(0.0)
    assert [chunk.stream for chunk in step.chunks] == [0, 1]
    fair.ran(step, [0.0], 0.2, 0)
    assert fair.served.tolist() == [102.0, 112.0]


def test_an_idle_client_saves_nothing_up(device, options) -> None:
    rows = [client("a", 300), client("a", 300), client("b", 100)]
    core = make_core(device, options, rows)
    core.waiting = [0]
    fair = FairScheduler(core)
    fair.served[:] = [500.0, 20.0]
    fair.offered()
    core.waiting = [1, 2]
    assert fair.offered() == [1, 2]  # b is lifted to a's 500, and a came first
    assert fair.served.tolist() == [500.0, 500.0]


def test_without_sessions_it_is_first_come_first_served(times_of, device, options) -> None:
    rows = [TraceRequest(0.05 * number, 100, 60, rate=10.0) for number in range(12)]
    fair = simulate(traced(*rows), device, options(), policy="vtc")
    plain = simulate(traced(*rows), device, options(), policy="fcfs")
    for index, times in times_of(plain).items():
        assert times_of(fair)[index] == pytest.approx(times)


def test_a_heavy_client_does_not_delay_a_light_one(times_of, device, options) -> None:
    heavy = [client("heavy", 300, output=200) for _ in range(8)]
    rows = [*heavy, client("light", 300, at=0.01, output=20)]

    def first(policy: str) -> float:
        done = simulate(traced(*rows), device, options(), policy=policy, sessions=Sessions.open)
        return times_of(done)[8][0]

    assert first("vtc") < 0.7 * first("fcfs")
