"""Requests that are refused in the simulator: what is left is served well, the rest is told."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from tokenflow_sgl.choices import Contender
from tokenflow_sgl.cli.chosen_engine import SimulatedServer
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.sim.run import simulate
from tokenflow_sgl.lab.sim.schedulers.earliest_deadline import EarliestDeadlineScheduler
from tokenflow_sgl.lab.traces import open_trace
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.qos.classes import SHIPPED_CLASSES, QosClass

GOAL = parse_goal("ttft<=2,stall<=0.5")
OVERLOAD = "h200-c?duration=40&readers=20"


@pytest.fixture(scope="module")
def server():
    return SimulatedServer(kv_tokens=30_000, hicache_ratio=2.0).open("h200", "llama3-8b")


def served(server, trace, **config):
    settings = WorkingSetConfig(**config)
    return simulate(trace, *server, policy=Contender.tokenflow, config=settings).run


def test_most_that_are_let_in_are_served_well(server) -> None:
    trace = open_trace("h200-c?duration=80&readers=20")
    run = served(server, trace, max_wait=2.0)
    refused = np.array([error is not None for error in run.requests["error"].to_pylist()])
    assert 0.1 < refused.mean() < 0.95
    assert GOAL.met(run)[~refused].mean() > 0.9
    # The control: without refusals far fewer are served well.
    every = served(server, trace)
    assert every.requests["error"].null_count == len(trace.requests)
    assert GOAL.met(every).sum() < 0.8 * GOAL.met(run).sum()


def test_who_is_refused_gets_no_token_and_is_told(server) -> None:
    run = served(server, open_trace(OVERLOAD), max_wait=2.0)
    for row in run.requests.to_pylist():
        if row["error"] is not None:
            assert row["error"].startswith("HTTP 429")
            assert row["output_tokens"] == 0
            assert row["finish_reason"] is None
            assert row["ended_s"] == row["sent_s"]
        else:
            assert row["output_tokens"] > 0


def test_a_class_may_wait_longer_than_another(server) -> None:
    trace = open_trace(OVERLOAD)
    classes = dataclasses.replace(
        SHIPPED_CLASSES,
        known={
            "hasty": QosClass("hasty", 20.0, max_wait=0.5),
            "patient": QosClass("patient", 20.0, max_wait=0.0),
        },
    )
    requests = tuple(
        dataclasses.replace(each, qos_class="patient" if n % 4 == 0 else "hasty", rate=None)
        for n, each in enumerate(trace.requests)
    )
    mixed = dataclasses.replace(trace, requests=requests)
    run = simulate(mixed, *server, policy=Contender.tokenflow, classes=classes).run
    rows = run.requests.to_pylist()
    assert all(row["error"] is None for row in rows if row["qos_class"] == "patient")
    assert any(row["error"] is not None for row in rows if row["qos_class"] == "hasty")


@pytest.mark.parametrize("policy", [Contender.fcfs, Contender.tokenflow])
def test_a_full_queue_refuses_what_comes(server, policy) -> None:
    """SGLang's own way, --max-queued-requests, under either scheduler."""
    profile, options = server
    limited = dataclasses.replace(options, max_queued_requests=2)
    trace = open_trace(OVERLOAD)
    run = simulate(trace, profile, limited, policy=policy).run
    errors = {row["error"] for row in run.requests.to_pylist()}
    assert errors == {None, "HTTP 503: The request queue is full."}


def test_the_earliest_deadline_is_first_in_the_queue(server) -> None:
    core = SimpleNamespace(
        waiting=[0, 1, 2, 3],
        streams=SimpleNamespace(
            arrival=np.array([0.0, 1.0, 2.0, 3.0]), deadline=np.array([9.0, np.nan, 0.5, 3.0])
        ),
    )
    found = EarliestDeadlineScheduler.offered(SimpleNamespace(core=core))  # type: ignore[arg-type]
    assert found == [2, 1, 3, 0], "at 2.5, 3, 6 and 9 s"


def test_the_later_turns_of_a_refused_one_are_not_sent(server) -> None:
    trace = open_trace(OVERLOAD)
    half = len(trace.requests) // 2
    requests = tuple(
        dataclasses.replace(each, session=str(n % half), turn=n // half, think_s=1.0)
        for n, each in enumerate(trace.requests[: 2 * half])
    )
    run = served(server, dataclasses.replace(trace, requests=requests), max_wait=0.5)
    rows = run.requests.to_pylist()
    refused = {row["session"]: row["turn"] for row in rows if row["error"] is not None}
    assert refused
    later = [row for row in rows if row["turn"] > refused.get(row["session"], row["turn"])]
    assert later
    assert all(row["sent_s"] is None for row in later)
