"""Programs' answers by their deadlines, beside readers, in the simulator."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tokenflow_sgl.choices import Contender
from tokenflow_sgl.cli.chosen_engine import SimulatedServer
from tokenflow_sgl.lab.report.goal import parse_goal
from tokenflow_sgl.lab.sim.run import simulate
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.study.capacity_search import at_speed
from tokenflow_sgl.lab.traces import open_trace
from tokenflow_sgl.qos.classes import BY_DEADLINE, SHIPPED_CLASSES, QosClass

DEADLINE = 90.0
CLASSES = dataclasses.replace(
    SHIPPED_CLASSES,
    known={
        "chat": QosClass("chat", 20.0),
        "job": QosClass("job", 1000.0, reader=False, deadline=DEADLINE),
        "late": QosClass("late", 1000.0, reader=False, deadline=0.01),
    },
)
MIXED = at_speed(open_trace("h200-c?duration=60&readers=20&share=0.5"), 1.5)


@pytest.fixture(scope="module")
def kept():
    """The share of jobs in time, and of readers without a stall, under a policy."""
    server = SimulatedServer(kv_tokens=60_000, hicache_ratio=2.0).open("h200", "llama3-8b")

    def share(policy: Contender, kind: str = "job") -> tuple[float, float]:
        requests = tuple(
            dataclasses.replace(each, rate=None, qos_class=("chat", kind)[number % 2])
            for number, each in enumerate(MIXED.requests)
        )
        trace = dataclasses.replace(MIXED, requests=requests)
        run = simulate(trace, *server, policy=policy, classes=CLASSES).run
        jobs = np.arange(len(requests)) % 2 == 1
        in_time = parse_goal(f"e2e<={DEADLINE:g}").met(run)[jobs].mean()
        return float(in_time), float(parse_goal("stall<=0.5").met(run)[~jobs].mean())

    return share


def test_more_are_kept_than_by_any_other_order_and_readers_do_not_stall(kept) -> None:
    ours, well = kept(Contender.tokenflow)
    assert well > 0.98
    for rival in (Contender.fcfs, Contender.edf, Contender.vtc):
        assert ours > kept(rival)[0]


def test_what_is_lost_from_the_start_does_no_harm(kept) -> None:
    """The control: as lost jobs, the same requests are seldom in time, and readers do well."""
    share, well = kept(Contender.tokenflow, "late")
    assert share < kept(Contender.tokenflow)[0]
    assert well > 0.98


def test_a_request_of_its_own_deadline_is_served_as_one_of_such_a_class() -> None:
    server = SimulatedServer(kv_tokens=60_000, hicache_ratio=2.0).open("h200", "llama3-8b")

    def tokens(**program: object) -> object:
        requests = tuple(
            dataclasses.replace(each, **({"rate": None, **program} if number % 2 else {}))
            for number, each in enumerate(MIXED.requests)
        )
        trace = dataclasses.replace(MIXED, requests=requests)
        # A policy that learns the lengths of each class would tell them apart.
        return simulate(trace, *server, policy=Contender.edf, classes=CLASSES).run.tokens

    own = tokens(deadline_s=DEADLINE)
    assert own.equals(tokens(qos_class="job"))
    assert not own.equals(tokens(qos_class="late"))


def test_a_program_with_a_deadline_has_no_reader() -> None:
    first, second = MIXED.requests[:2]
    asked = (
        dataclasses.replace(first, rate=None, deadline_s=5.0),
        dataclasses.replace(second, rate=7.0, deadline_s=6.0),
    )
    streams = SimulatedStreams(asked, None, CLASSES)
    assert streams.rate.tolist() == [BY_DEADLINE.rate, 7.0]
    assert streams.deadline.tolist() == [5.0, 6.0]
