"""Several engines behind a router."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenflow_sgl.sim import SimulationError, simulate
from tokenflow_sgl.sim.cluster import ROUTERS
from tokenflow_sgl.traces import Accounting, Trace, TraceRequest

on_two = partial(simulate, policy="fcfs", replicas=2)


@pytest.mark.parametrize("router", ROUTERS)
def test_two_requests_at_once_go_to_two_servers(times_of, trace, device, options, router) -> None:
    done = on_two(trace((0.0, 100, 3), (0.0, 100, 3)), device, options(), router=router)
    # Each alone: 0.1 s of prefill, and two decode steps.
    assert times_of(done) == {index: pytest.approx([0.1, 0.11, 0.12]) for index in (0, 1)}
    assert done.steps == 6


def test_round_robin_does_not_look(times_of, trace, device, options) -> None:
    rows = trace((0.0, 900, 1), (1.0, 100, 1), (1.1, 100, 1))
    # The long one is done; the third goes to its server again, the first router's choice or not.
    for router in ("round-robin", "least-loaded"):
        done = on_two(rows, device, options(), router=router)
        assert times_of(done)[2] == pytest.approx([1.2])


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
