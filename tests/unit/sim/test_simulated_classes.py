"""Classes in the simulated engine: the same rules as in the live one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tracked import track

from tokenflow_sgl.lab.sim import simulate
from tokenflow_sgl.lab.sim.core import SimulatedCore
from tokenflow_sgl.lab.sim.policed import PolicedScheduler
from tokenflow_sgl.lab.sim.prefixes import Prefixes
from tokenflow_sgl.lab.sim.schedulers.by_name import make_scheduler
from tokenflow_sgl.lab.sim.simulated_streams import SimulatedStreams
from tokenflow_sgl.lab.sim.step import SimulatedDevice
from tokenflow_sgl.lab.traces import TraceError, TraceRequest
from tokenflow_sgl.lifecycle.table import StreamTable
from tokenflow_sgl.policy import WorkingSetConfig
from tokenflow_sgl.policy.predictors import LimitLengths
from tokenflow_sgl.qos import play
from tokenflow_sgl.qos.classes import SHIPPED, QosClass, QosClasses

KNOWN = {
    "voice": QosClass("voice", 10.0, weight=4.0),
    "tools": QosClass("tools", 10.0, tolerance=30.0, reader=False),
    "chat": QosClass("chat", 10.0),
}
CLASSES = QosClasses({**SHIPPED, **KNOWN}, SHIPPED["reading"])
PLAIN = replace(CLASSES, known={**SHIPPED, **{name: QosClass(name, 10.0) for name in KNOWN}})
BURST = [(0.05 * number, 100, 200) for number in range(24)]
"""24 answers of 200 tokens, 7,200 tokens of KV in the end; 1,000 fit."""


@pytest.fixture
def mixed(trace):
    """A burst whose requests name classes in turn."""

    def make(*names: str):
        made = trace(*BURST)
        requests = (
            replace(request, rate=None, qos_class=names[number % len(names)])
            for number, request in enumerate(made.requests)
        )
        return replace(made, requests=tuple(requests))

    return make


def waited(done, times_of, name: str) -> float:
    """Seconds that streams of a class waited for the first token and stalled, mean."""
    found = []
    for index, times in times_of(done).items():
        if done.run.requests["qos_class"][index].as_py() == name:
            found.append(times[0] - BURST[index][0] + float(play(times, 10.0).stalls.sum()))
    return float(np.mean(found))


def test_a_class_with_nothing_but_a_rate_is_that_rate(
    mixed, trace, times_of, device, options
) -> None:
    server = options(host_tokens=8000)
    named = simulate(mixed("chat"), device, server, classes=CLASSES)
    rated = simulate(trace(*BURST), device, server)
    assert times_of(named) == times_of(rated)
    assert named.preempted == rated.preempted > 0


def test_equal_weights_are_none(mixed, times_of, device, options) -> None:
    heavy = {"voice": QosClass("voice", 10.0, weight=8.0)}
    server = options(host_tokens=8000)
    one = simulate(mixed("voice"), device, server, classes=replace(CLASSES, known=heavy))
    two = simulate(mixed("voice"), device, server, classes=PLAIN)
    assert times_of(one) == times_of(two)


def test_the_heavier_class_waits_less_and_the_lighter_is_served(
    mixed, times_of, device, options
) -> None:
    trace, server = mixed("chat", "voice"), options(host_tokens=8000)
    with_them = simulate(trace, device, server, classes=CLASSES)
    without = simulate(trace, device, server, classes=PLAIN)
    assert waited(with_them, times_of, "voice") < waited(with_them, times_of, "chat")
    assert waited(with_them, times_of, "voice") < waited(without, times_of, "voice")
    assert with_them.run.requests["output_tokens"].to_pylist() == [200] * len(BURST)


def test_those_whose_wait_is_tolerated_yield_to_readers(mixed, times_of, device, options) -> None:
    trace, server = mixed("tools", "chat"), options(host_tokens=8000)
    with_them = simulate(trace, device, server, classes=CLASSES)
    without = simulate(trace, device, server, classes=PLAIN)
    assert waited(with_them, times_of, "chat") < waited(without, times_of, "chat")
    assert waited(with_them, times_of, "tools") > waited(without, times_of, "tools")


def test_a_class_that_there_is_not_is_refused(mixed, device, options) -> None:
    with pytest.raises(TraceError, match="request 0 of toy is of the class 'voice'; known classes"):
        simulate(mixed("voice"), device, options())


def test_the_run_says_what_its_classes_were(mixed, trace, device, options) -> None:
    run = simulate(mixed("voice"), device, options(host_tokens=8000), classes=CLASSES).run
    assert [each["name"] for each in run.info.options["classes"]] == ["voice"]
    assert set(run.requests["qos_class"].to_pylist()) == {"voice"}
    assert set(run.requests["rate"].to_pylist()) == {10.0}
    assert "classes" not in simulate(trace(*BURST), device, options()).run.info.options


def test_a_request_that_says_nothing_is_of_the_servers_default(device, options) -> None:
    requests = [TraceRequest(0.0, 9, 9), TraceRequest(0.0, 9, 9, rate=3.0)]
    streams = SimulatedStreams(requests, None, CLASSES.with_default("voice"))
    assert streams.weight.tolist() == [4.0, 1.0]
    assert streams.rate.tolist() == [10.0, 3.0]


def test_both_bodies_tell_a_policy_the_same(device, options) -> None:
    names = ("voice", "tools", "chat")
    hasty = replace(KNOWN["chat"], ttft_slo=2.0, tpot_slo=0.1)
    classes = replace(CLASSES, known={**CLASSES.known, "chat": hasty})
    requests = [TraceRequest(0.0, 9, 9, qos_class=name) for name in names]
    streams = SimulatedStreams(requests, None, classes)
    core = SimulatedCore(streams, Prefixes(requests, {}), SimulatedDevice(device), options())
    for index in range(len(names)):
        streams.arrive(index, 0.0, 0.0)
        core.waiting.append(index)
    scheduler = make_scheduler("tokenflow", core, WorkingSetConfig(), LimitLengths())
    assert isinstance(scheduler, PolicedScheduler)
    simulated = scheduler.state(0.0).streams

    table: StreamTable[object] = StreamTable(LimitLengths())
    for name in names:
        of = classes.known[name]
        track(
            table,
            object(),
            prompt=9,
            limit=9,
            rate=of.rate,
            qos_class=name,
            arrival=0.0,
            now=0.0,
            weight=of.weight,
            tolerance=of.tolerance,
            reader=of.reader,
        )
        table.ask(int(table.order()[-1]), of)
    live = table.streams(())
    for column in ("rate", "weight", "tolerance", "ttft_slo", "tpot_slo", "first_text"):
        one, two = getattr(simulated, column), getattr(live, column)
        assert np.array_equal(one, two, equal_nan=True), column
    assert (simulated.tbt_slo, live.tbt_slo) == (None, None)
