"""Several engines behind a router."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from states import state as make_state

from tokenflow_sgl.contract import State
from tokenflow_sgl.costs import StepCosts
from tokenflow_sgl.lab.profiles import DecodeTable
from tokenflow_sgl.lab.sim import SimulationError, simulate
from tokenflow_sgl.lab.sim.cluster import ROUTERS
from tokenflow_sgl.lab.sim.simulated_streams import IntArray, SimulatedStreams
from tokenflow_sgl.lab.traces import Accounting, Trace, TraceRequest
from tokenflow_sgl.policy import WorkingSetConfig

on_two = partial(simulate, policy="fcfs", replicas=2)


@pytest.mark.parametrize("router", [name for name in ROUTERS if name != "headroom"])
def test_two_requests_at_once_go_to_two_servers(times_of, trace, device, options, router) -> None:
    done = on_two(trace((0.0, 100, 3), (0.0, 100, 3)), device, options(), router=router)
    # Each alone: 0.1 s of prefill, two decode steps, and one before its end is known.
    assert times_of(done) == {index: pytest.approx([0.1, 0.11, 0.12]) for index in (0, 1)}
    assert done.steps == 8


def test_round_robin_does_not_look(times_of, trace, device, options) -> None:
    rows = trace((0.0, 900, 1), (1.0, 100, 1), (1.1, 100, 1))
    # The long one is done; the third goes to its server again, or to the other one, and waits for a
    # step in which the second's row is computed for nothing.
    for router, first in {"round-robin": 1.2, "least-loaded": 1.21}.items():
        done = on_two(rows, device, options(), router=router)
        assert times_of(done)[2][0] == pytest.approx(first)


def test_the_least_loaded_server_is_the_one_with_less_to_compute(
    times_of, trace, device, options
) -> None:
    rows = trace((0.0, 400, 300), (0.0, 100, 50), (0.2, 100, 1))
    done = on_two(rows, device, options(), router="least-loaded", known_lengths=True)
    # It interrupts the second, whose server has less left, not the first.
    gaps = {
        index: max(b - a for a, b in itertools.pairwise(times))
        for index, times in times_of(done).items()
        if len(times) > 1
    }
    assert gaps[1] > 0.1
    assert gaps[0] == pytest.approx(0.01)


def test_full_buffers_ask_for_nothing(trace, device, options) -> None:
    # Both servers have one reader each. The first's got 200 tokens for 1 token/s: nothing is asked
    # for soon. The second's reads 90 a second.
    rows = trace((0.0, 100, 600, 1.0), (0.0, 100, 500, 90.0), (4.0, 50, 10, 10.0))
    done = on_two(rows, device, options(), router="buffer-aware", known_lengths=True)
    first = done.run.tokens.to_pydict()
    times = [t for r, t in zip(first["request"], first["time_s"], strict=True) if r == 0]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert max(gaps) > 0.04  # the newcomer's prefill came between


def test_servers_of_other_kinds_have_times_and_memory_of_their_own(
    times_of, trace, device, options
) -> None:
    steps = ((0.02, 0.02), (0.02, 0.02))
    slow = dataclasses.replace(
        device, device="slow", decode=DecodeTable((1.0, 1000.0), (1.0, 1e6), steps)
    )
    rows = trace((0.0, 100, 3), (0.0, 100, 3))
    done = simulate(
        rows,
        device,
        options(),
        policy="fcfs",
        beside=[(slow, options(max_total_tokens=500))],
        router="round-robin",
    )
    assert times_of(done)[0] == pytest.approx([0.1, 0.11, 0.12])
    assert times_of(done)[1] == pytest.approx([0.1, 0.12, 0.14])
    target = done.run.info.target
    assert target["simulated_device"] == "toy"
    [other] = target["beside"]
    assert (other["simulated_device"], other["server_args"]["max_total_tokens"]) == ("slow", 500)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_total_tokens": 400}, "request 0 of toy has 500 tokens; --kv-tokens is 400"),
        ({"page_size": 16}, "must have pages of the same size"),
    ],
)
def test_what_another_kind_cannot_serve_is_said(trace, device, options, given, message) -> None:
    with pytest.raises(SimulationError, match=message):
        simulate(trace((0.0, 400, 100)), device, options(), beside=[(device, options(**given))])


class Server:
    """A server as routers see it: who is there, what is cached, what a policy sees."""

    def __init__(self, *there: int, cached: int = 0, kv_tokens: int = 10_000) -> None:
        self.there = np.array(there, dtype=np.int64)
        memory = SimpleNamespace(match=lambda stream: (0, cached if stream == 3 else 0))
        self.engine = SimpleNamespace(core=SimpleNamespace(memory=memory))
        self.kv_tokens = kv_tokens
        self.looked: list[float] = []

    def present(self) -> IntArray:
        return self.there

    def state(self, now: float) -> State:
        """Of an engine without streams: its headroom is 0.95 of its memory."""
        self.looked.append(now)
        return make_state([], now=now, total=self.kv_tokens, host=0, costs=StepCosts())


def lmetric(trace: Callable[..., Trace], *servers: Server) -> int:
    """Where it sends the last of four requests; the first two have started."""
    streams = SimulatedStreams(trace(*[(0.0, 100, 400)] * 3, (1.0, 210, 400)).requests)
    streams.known[:2] = 5
    return ROUTERS["lmetric"](streams, WorkingSetConfig())(servers, 3, 1.0)


def test_lmetric_multiplies_what_is_to_prefill_by_the_batch(trace) -> None:
    # 210 * 2 against 210 * 1; then the one that waits adds its prompt: 310 * 1.
    assert lmetric(trace, Server(0, 1), Server(2)) == 1
    assert lmetric(trace, Server(0), Server(2)) == 0
    assert lmetric(trace, Server(2), Server(0)) == 1
    # 10 * 2 against 210 * 1: the prompt is cached where two run.
    assert lmetric(trace, Server(2), Server(0, 1, cached=200)) == 1
    assert lmetric(trace, Server(2), Server(0, 1, cached=20)) == 0
    # A server without requests scores 0 whatever is cached elsewhere.
    assert lmetric(trace, Server(0, cached=209), Server()) == 1


def test_headroom_needs_servers_that_report_it(trace, device, options) -> None:
    with pytest.raises(SimulationError, match=r"router is 'headroom', which reads tokenflow:head"):
        on_two(trace((0.0, 1, 1)), device, options(), router="headroom")


def test_headroom_sees_the_work_that_readers_ask_for(trace, device, options) -> None:
    # The first server's reader reads 90 tokens/s, the second's 1/s: the third goes to the second.
    rows = trace((0.0, 100, 500, 90.0), (0.0, 100, 500, 1.0), (4.0, 50, 10, 10.0))
    given = options(host_tokens=5000)
    run = partial(simulate, rows, device, given, policy="tokenflow", replicas=2, known_lengths=True)
    tokens = run(router="headroom").run.tokens.to_pydict()
    paired = list(zip(tokens["request"], tokens["time_s"], strict=True))
    longest = {}
    for reader in (0, 1):
        times = [time for request, time in paired if request == reader]
        longest[reader] = max(b - a for a, b in itertools.pairwise(times))
    assert longest[1] > 0.04 > longest[0]  # the newcomer's prefill came between


def test_headroom_takes_off_what_was_sent_since_it_was_read(trace) -> None:
    streams = SimulatedStreams(trace(*[(0.0, 100, 400)] * 6).requests)
    route = ROUTERS["headroom"](streams, WorkingSetConfig())
    # 9,500 and 9,300 tokens; each request takes 100 and 30 s of 10 tokens/s off.
    servers = [Server(), Server(kv_tokens=9789)]
    assert [route(servers, index, index / 10) for index in range(6)] == [0, 1, 0, 1, 0, 1]
    assert servers[0].looked == servers[1].looked == [0.0]
    assert route(servers, 0, 1.0) == 0  # read again
    assert servers[0].looked == servers[1].looked == [0.0, 1.0]


def test_headroom_takes_off_no_more_than_the_limit(trace) -> None:
    streams = SimulatedStreams(trace(*[(0.0, 100, 50)] * 3).requests)
    route = ROUTERS["headroom"](streams, WorkingSetConfig())
    servers = [Server(), Server(kv_tokens=9789)]
    # 150 tokens each: two fit into the difference of 200.
    assert [route(servers, index, 0.0) for index in range(3)] == [0, 0, 1]


@settings(max_examples=30, deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(0.0, 3.0), st.integers(1, 300), st.integers(1, 200)),
        min_size=1,
        max_size=15,
    ),
    policy=st.sampled_from(["fcfs", "tokenflow"]),
    router=st.sampled_from(sorted(ROUTERS)),
    replicas=st.integers(2, 4),
)
def test_each_request_is_served_once(
    times_of, trace, device, options, rows, policy, router, replicas
) -> None:
    assume(policy == "tokenflow" or router != "headroom")
    requests = trace(*sorted(rows))
    roomy = options(host_tokens=5000)
    done = simulate(requests, device, roomy, policy=policy, replicas=replicas, router=router)
    times = times_of(done)
    for index, request in enumerate(requests.requests):
        assert len(times[index]) == request.output_tokens
        assert times[index] == sorted(times[index])
        assert times[index][0] >= request.arrival_s


def test_closed_sessions_go_through_the_router_turn_by_turn(times_of, device, options) -> None:
    turns = [
        TraceRequest(0.0, 100, 3, rate=10.0, session="a", turn=turn, think_s=1.0)
        for turn in range(3)
    ]
    whole = Trace("turns", tuple(turns), Accounting(3, 3))
    done = simulate(whole, device, options(), policy="fcfs", replicas=2)
    times = times_of(done)
    for turn in (1, 2):
        assert times[turn][0] == pytest.approx(times[turn - 1][-1] + 1.1, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"router": "random"}, "router is 'random'; allowed is round-robin, least-loaded"),
        ({"replicas": 0}, "replicas is 0; allowed is 1 to 256"),
    ],
)
def test_what_cannot_be_routed_is_said(trace, device, options, given, message) -> None:
    with pytest.raises(SimulationError, match=message):
        simulate(trace((0.0, 1, 1)), device, options(), **given)
